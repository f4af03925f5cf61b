"""Object storage: S3, Google Cloud Storage, Azure, Hugging Face, https; for tests, memory and folders.

Knows locations, objects and conditional writes, which it retries; nothing of recordings, results or
records.
"""
