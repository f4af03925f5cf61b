"""Adapters that give unmodified transformers models the core's `Model` protocol."""
