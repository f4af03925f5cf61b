"""Speed and memory: of the command, the service, draft lengths and diarization.

Measures time and memory, together with the equality of the results. Knows nothing of accuracy.
"""
