"""Transcription requests: forms, options, answers and events, and the transcriber's thread.

Knows OpenAI's and Hugging Face's contracts; does not know tensors.
"""
