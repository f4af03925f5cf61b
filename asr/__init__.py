"""Speech recognition: recordings to transcripts, with Whisper and a draft for it.

Knows audio, windows, tokens, words and files; nothing of speakers, HTTP or command lines.
"""
