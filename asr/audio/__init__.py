"""Audio files to mono float32 samples at 16 kHz and log-mel features.

Knows containers, codecs and child processes; nothing of models, windows or results.
"""
