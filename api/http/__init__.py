"""HTTP below the routes: connections, origins, request ids, errors, the OpenAPI description.

Knows requests and answers; nothing of audio or models.
"""
