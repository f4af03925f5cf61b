"""What jobs leave on disk: rows in a database, audio and text as blobs.

Knows SQL and files; does not know models, workflows or HTTP.
"""
