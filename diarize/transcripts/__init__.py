"""Transcribers whose transcripts name the speakers.

They compose a transcriber with a diarizer. They know neither models nor output files.
"""
