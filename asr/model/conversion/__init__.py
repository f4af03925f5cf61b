"""Weights in other formats than Hugging Face's, converted once into the cache; nothing of them is executed.

Knows files; nothing of devices and decoding.
"""
