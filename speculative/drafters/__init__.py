"""Drafters: what proposes tokens for the target to score.

One module per kind, each an implementation of `speculative.protocols.Drafter`; knows rows and models,
nothing of the engine's queue.
"""
