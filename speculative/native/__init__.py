"""Decoders and Whisper's encoder as calls of compiled kernels, for CPUs.

Optional: the kernels (`kernels/` in the repository) are compiled at set-up where there is a C++ compiler, or
by `python -m forescribe.speculative.native.kernel_build`, never during a request. Knows how to build, find,
load and call them; nothing of transformers. Without them lean decoders and modules compute the same tokens.
"""
