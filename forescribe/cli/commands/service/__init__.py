"""The commands of the service: `serve`, `worker` and `key`.

Know options; everything else is a setting of `forescribe.api`, which is imported when a command runs.
"""
