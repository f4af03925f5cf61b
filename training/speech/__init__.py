"""Synthetic speech: voices, noise and channels, the times of words, and the recordings in `samples/`.

Knows sentences and samples of sound, but no model.
"""
