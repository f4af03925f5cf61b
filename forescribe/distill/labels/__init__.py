"""Labels: what a target wrote, and how probable it found the alternatives.

Made once through the engine, kept on disk in files that are complete or absent, and drawn in batches.
Knows token ids and tensors; recordings and prompts only by their names.
"""
