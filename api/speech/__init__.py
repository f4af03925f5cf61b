"""Transcription requests: forms in, answers and events out, and the engine's thread between them.

Knows OpenAI's and Hugging Face's contracts; nothing of tensors.
"""
