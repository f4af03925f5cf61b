"""Commands below `forescribe bench` that have a module of their own.

`cli.main` adds them to the group in `bench_command`, whose options and helpers they share.
"""
