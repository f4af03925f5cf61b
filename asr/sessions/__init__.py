"""Sessions: recordings from any thread share one transcriber, window by window, in order of due time.

Knows threads, plans and listeners; nothing of HTTP, of databases or of where records are kept.
"""
