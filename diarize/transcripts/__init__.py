"""Transcribers whose transcripts name the speakers.

Compose a transcriber with a diarizer; know neither models nor files.
"""
