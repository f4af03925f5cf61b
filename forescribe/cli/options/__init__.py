"""Command-line options: declarations, help by section, validation, and flags of other programs.

Knows names, values and help texts; does no work and imports nothing heavy.
"""
