"""The service as processes: start, workers, sockets, model threads, readiness, and their end.

Knows ports, signals and threads; does not know routes.
"""
