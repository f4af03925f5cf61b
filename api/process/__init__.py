"""The service as processes: server, workers, sockets, health, the end of a process that hangs.

Knows ports and signals; nothing of routes.
"""
