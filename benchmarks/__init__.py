"""Benchmarks: programs of the repository, with its samples and training code. See README.md.

These are programs, not a library; only tests import them, and no wheel has them. May import `training`, but
not the other way round.
"""
