"""The service as processes: start, workers, sockets, model threads, and their end."""
