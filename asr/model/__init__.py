"""Whisper models by name: presets, the location of their weights, and pairs loaded for a device.

Knows configurations and tokenizers; nothing of recordings.
"""
