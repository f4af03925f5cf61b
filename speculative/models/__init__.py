"""Adapters that give unmodified transformers models the core's `Model` protocol.

Knows transformers, caches and masks, and where weights are; nothing of drafting or of requests.
"""
