"""Whisper models by name: presets, where their weights are, and a pair loaded for a device.

Knows configurations and tokenizers; nothing of recordings.
"""
