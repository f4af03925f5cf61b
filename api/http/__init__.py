"""HTTP below the routes: connections, origins, request ids, errors, the OpenAPI description."""
