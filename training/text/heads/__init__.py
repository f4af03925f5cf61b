"""Heads for the text pair: EAGLE-3 and an MTP layer, trained on what the target writes.

The target is frozen. Each head is a dictionary of tensors with their published names; the loader of
`forescribe.speculative.models.heads` turns it into the record that training and decoding both run.
"""
