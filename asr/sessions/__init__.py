"""Recordings from any thread that share one transcriber's slots.

Knows queues and order; nothing of HTTP or jobs.
"""
