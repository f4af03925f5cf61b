"""Weights of lean models in the layouts of the kernels.

One module for each kind of model, over the `Packer` that owns the packed copies. Knows the records of
`models.lean` and of `structures`; calls no forward.
"""
