"""The demo speech pair: windows, batches, training, distillation, export, evaluation and model card.

Uses `training.sentences` and `training.speech`. Knows nothing of speakers.
"""
