"""The work on jobs: the steps of their workflows, and recovery after a process has died.

Knows the session, the diarizer and the job store; does not know HTTP or the workflow library.
"""
