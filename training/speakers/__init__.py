"""The speaker encoder and the PLDA of `diarize/`: vectors, training, tuning, and turn errors.

Knows voices and turns, but no words.
"""
