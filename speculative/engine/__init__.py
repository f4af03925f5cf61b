"""Continuous batching: requests in, results out, one round after the other.

Knows slots, graphs and schedules; nothing of a model's layers, and nothing of audio or text.
"""
