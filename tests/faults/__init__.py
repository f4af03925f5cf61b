"""Killed processes and interrupted uploads: real servers with a fake model, every job checked."""
