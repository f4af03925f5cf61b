"""A Whisper's draft from one's own recordings: distillation, from another draft or from layers of the target.

`labels` holds what the target wrote, `speech` makes it, chooses layers and runs the models, `training`
trains, `report` measures, `distillation` runs these stages. Knows no command line.

Shapes: B rows of a batch, L tokens of a row, N predicted positions, R listed tokens of a distribution, V
vocabulary, S positions of encoder states, D width.
"""
