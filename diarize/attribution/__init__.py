"""Assigns a speaker to every word of a transcript, given the turns.

Knows transcripts and turns, but nothing of audio.
"""
