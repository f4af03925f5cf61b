"""Benchmarks that need the repository: its samples and training code. See README.md.

These are programs, not a library; only tests import them. Benchmarks for users' own models are the
command `forescribe bench`, in `forescribe/bench`. May import `training`, but not the other way round.
"""
