"""One forward and one round of a decoder, by every engine that this machine has, beside its equality.

Knows the bundled pairs and the engines of `speculative/`; nothing of whole recordings.
"""
