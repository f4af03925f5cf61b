"""What a user sees in the terminal while a command runs: messages, a progress bar, lists.

Knows how results are shown; nothing of options or of how results are made.
"""
