"""The routes, one file per surface."""
