"""Faults of a service on several machines: processes with folders of their own, which share a database and
object storage and nothing else.
"""
