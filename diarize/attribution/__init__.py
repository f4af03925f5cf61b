"""A speaker for every word, given the words and the turns.

Knows transcripts and turns; nothing of audio.
"""
