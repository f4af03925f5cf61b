"""HTTP below the routes: connections, origins, request ids, errors, the OpenAPI description.

Knows requests and answers; does not know audio or models.
"""
