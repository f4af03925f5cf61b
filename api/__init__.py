"""The service: HTTP over `asr`. Knows requests, limits and answers, nothing of tensors.

forescribe serve --model demo
"""
