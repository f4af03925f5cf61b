"""Heads on a target's hidden states, as models: EAGLE-3, MTP layers and DFlash in their published formats,
and a block head for Whisper in one of our own.

A loader of each format maps names, settings and shapes to a record of `head_record`, and refuses
by name what it does not know; bodies run a head's layers. Knows files and tensors; nothing of drafting.
"""
