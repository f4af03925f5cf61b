"""The HTTP service over `asr`, `diarize` and `text`: routes, limits, jobs and the page.

Knows requests and answers; does not know tensors. Started by `forescribe serve --model tiny.en`.
"""
