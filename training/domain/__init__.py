"""Recordings of a domain and an accent that the bundled draft was not trained for.

For measurements of `forescribe distill`. Knows synthesisers; nothing of models.
"""
