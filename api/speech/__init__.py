"""Transcription requests: forms, answers, and the transcriber's thread."""
