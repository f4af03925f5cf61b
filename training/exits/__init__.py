"""Drafts from a target's own layers: early exits, and layers that are skipped. Measured, and not an option.

Knows published weights; nothing of engines.
"""
