"""Diarization engines: pyannote's pipelines and the models that ship with the package.

Know samples and turns; nothing of words.
"""
