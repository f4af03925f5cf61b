"""Sessions: recordings from any thread share one transcriber, window by window, in order of due time."""
