"""`forescribe bench text`: text generation by this engine and by transformers.

Knows the systems, their turns and the table; nothing of the command line.
"""
