"""Commands about runs that others do: how far they are, and what takes part in them.

Knows options and what is printed; the runs themselves are in `asr.records`.
"""
