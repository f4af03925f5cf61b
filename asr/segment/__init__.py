"""Recordings cut into windows of at most 30 s: voice activity, pauses, and a partition of the samples."""
