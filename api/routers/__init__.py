"""The routes, one module for each resource.

Knows paths, parameters and status codes; the work is done in `speech`, `text` and `jobs`.
"""
