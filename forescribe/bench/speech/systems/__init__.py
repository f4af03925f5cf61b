"""The systems that `bench transcribe` compares, behind one small protocol.

Knows how each system is loaded and run on windows; nothing of measuring. Each module imports its
library when it is built: a library that is missing or cannot load the model costs one row, not the
run.
"""
