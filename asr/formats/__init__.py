"""Transcripts as records and as files: text, subtitles, JSON, RTTM, HTML."""
