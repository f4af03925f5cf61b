"""Drafts whose vocabulary is not their target's: maps between token ids, and models behind such a map.

Knows ids and tensors; nothing of tokenizers, or of where a map comes from.
"""
