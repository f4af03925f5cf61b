"""Faults of the service: killed processes, full disks, lost databases, overload, deployments.

Starts real server processes with a fake model and checks every job. Measures no speed.
"""
