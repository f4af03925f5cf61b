"""Diarization engines: pyannote's pipelines and the models of this package.

They know samples and turns, but nothing of words.
"""
