"""Tokens to segments, words and their times, from the target's cross-attention."""
