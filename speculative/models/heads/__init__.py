"""Heads on a target's hidden states, as models: EAGLE-3, MTP and DFlash as published, and Whisper's block."""
