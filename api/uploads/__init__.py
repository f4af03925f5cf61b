"""Uploads to files on disk: multipart bodies and resumable uploads.

Knows bytes and limits; nothing of what is in a file.
"""
