"""Speech to tokens: the transcriber, its options and guards, Whisper's token rules, encoding, outcomes.

Knows one model and its engine; nothing of files, formats or command lines.
"""
