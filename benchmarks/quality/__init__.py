"""Accuracy: word times, words in silence, speakers, and the distribution of sampled texts.

Compares results with a known truth. Knows nothing of speed.
"""
