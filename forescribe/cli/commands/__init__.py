"""The commands, one module each: a command reads its options, calls the package and reports the result.

Knows which parts a command needs and its exit code; nothing of how options are declared or drawn.
"""
