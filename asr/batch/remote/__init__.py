"""Batches whose recordings are fetched, or whose results go to object storage.

Knows inputs and outputs at locations, the local copies in between and records created once; nothing of
models.
"""
