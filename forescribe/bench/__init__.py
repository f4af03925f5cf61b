"""`forescribe bench`: speed next to equality and error rate, against other programs on the same
weights.

Knows what is measured and how it is reported; decoding is elsewhere. It is a part of the package,
not of `benchmarks/`, so that the wheel has it; what needs the repository (samples, training) is in
`benchmarks/`.
"""
