"""One person in several recordings: enrolled voices, stable labels, and links between blocks.

Knows voice vectors, but nothing of words or engines.
"""
