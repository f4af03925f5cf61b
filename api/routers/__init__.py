"""The routes, one module per resource, named after it.

A route parses its request and formats its answer; what is done is in the other folders of `api`.
"""
