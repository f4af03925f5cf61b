"""Uploads to files on disk: multipart bodies and resumable uploads."""
