"""The `forescribe` command: options, messages, exit codes.

What a command does is in the parts; heavy imports stay inside the commands.
"""
