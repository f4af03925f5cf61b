"""The `forescribe` command line: commands, options, messages and exit codes.

Knows how to read a command line and what to show. The work is done by the other parts of the package,
which the commands import when they run: torch alone takes seconds, and `--help` must answer at once.
"""
