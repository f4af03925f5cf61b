"""Depth pruning: a draft of some of its target's layers.

Which layers change the hidden states least is measured on data; the others are left out. Knows models of
transformers and hidden states; nothing of training.
"""
