"""Windows to tokens: requests to the engine, guards, temperature fallback, and results.

Knows one call of the transcriber; nothing of files, formats or command lines.
"""
