"""Decoders whose matrices are 8-bit integers, with a scale for each output and for each row of inputs.

A quantised model is a transformers model with `Int8Linear` in place of `torch.nn.Linear`; every engine reads
its integers. Knows torch modules; nothing of engines.
"""
