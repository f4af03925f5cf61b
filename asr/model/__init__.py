"""Whisper models by name: presets, where their weights are, and pairs loaded on a device."""
