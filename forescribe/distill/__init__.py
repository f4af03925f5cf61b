"""Drafts from one's own recordings and texts: distillation and depth pruning.

`labels` holds what the target wrote, `pairs` a target with its drafts, `pruning` drafts from a target's own
layers, `results` what is measured and written. `distillation` runs the stages. Knows no command line.

Shapes: B rows of a batch, L tokens of a row, N predicted positions, R listed tokens of a distribution,
V vocabulary, S positions of encoder states, D width.
"""
