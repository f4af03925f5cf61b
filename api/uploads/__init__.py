"""Uploads to files on disk: multipart bodies and resumable uploads.

Knows bytes and limits; does not know what is in a file.
"""
