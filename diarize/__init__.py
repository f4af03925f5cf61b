"""Speaker diarization: who speaks when, and a speaker for every word of a transcript.

Knows samples, turns, voices and the transcripts of `forescribe.asr`; nothing of HTTP.
"""
