"""Tokens to segments and words with times.

Pure functions of tokens and attention; nothing of recordings or speakers.
"""
