"""Drafters that run heads on a target's hidden states: one token after another, or a block in one pass.

The heads themselves, and the formats in which they are published, are in `models.heads`. Knows rows, taps and
records; nothing of files.
"""
