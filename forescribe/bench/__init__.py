"""`forescribe bench`: a speed next to its equality and its error rate, peers on the same weights.

Here and not in `benchmarks/`, so that it is in the wheel: a top-level `benchmarks` in everybody's
site-packages would hide theirs. What needs the repository (its samples, its training) stays there.
"""
