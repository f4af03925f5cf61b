"""Weights in other formats than Hugging Face's: read without executing anything, converted once into the cache.

Knows files; nothing of devices and decoding.
"""
