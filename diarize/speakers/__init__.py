"""The same person in several recordings: enrolled voices, labels that stay, links between blocks.

Knows voice vectors; nothing of words or engines.
"""
