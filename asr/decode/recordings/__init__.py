"""Whole recordings: their windows through the engine, in parallel or one after the other, and results.

Knows the state of each recording of a call; nothing of threads, sessions, files or command lines.
"""
