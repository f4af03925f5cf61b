"""Measurements: a speed next to its equality check and its error rate, peers on the same weights.

Programs, not a library; nothing else imports them. See README.md in this folder.
"""
