"""Drafts from one's own recordings and texts: distillation and depth pruning.

`labels` holds what the target wrote, `pair` says what a target with its drafts does, `speech` and `text` do
it, `pruning` makes drafts from a target's own layers, `training` trains them, `report` measures them.
`distillation` runs the stages. Knows no command line.

Shapes: B rows of a batch, L tokens of a row, N predicted positions, R listed tokens of a distribution, V
vocabulary, S positions of encoder states, D width.
"""
