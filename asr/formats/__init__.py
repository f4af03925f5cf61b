"""Transcripts as records and as files: text, subtitles, JSON, RTTM, HTML.

Knows what a transcript says; nothing of how it was decoded.
"""
