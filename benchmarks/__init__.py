"""Measurements that need the repository: its samples, its training, its bounds. See README.md here.

Programs, not a library; nothing else imports them. What anybody may want to measure on models of
their own is a command, `forescribe bench`, and lives in `asr/bench`.
"""
