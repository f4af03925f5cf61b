"""Decoders as short functions over the weights of unmodified transformers models.

Knows which families have such a form, their weights and their arithmetic; nothing of transformers' caches
or of its modules' forward methods, which stay the reference.
"""
