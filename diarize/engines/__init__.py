"""Diarization engines: pyannote's pipelines and the models of this package."""
