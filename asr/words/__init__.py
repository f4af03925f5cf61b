"""Tokens to segments, words and their times, from the target's cross-attention.

Knows tokens, text and attention maps; nothing of calls, files or speakers.
"""
