"""Object storage: S3, Google Cloud Storage, Azure, Hugging Face, https; for tests, memory and folders."""
