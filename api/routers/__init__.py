"""The routes: paths, parameters and status codes. The work is done in `speech`, `text` and `jobs`."""
