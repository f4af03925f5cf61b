"""One round of speculative decoding, as pure tensor code: draft, score, accept, commit.

No host sync and no data-dependent shape; knows nothing of requests, queues or devices.
"""
