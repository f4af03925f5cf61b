"""Targets with the drafts that learn from them: Whisper and causal language models.

A pair labels data with its target, computes logits of a draft in training, and builds the engine that serves
both. Knows models, recordings and prompts; nothing of losses and schedules.
"""
