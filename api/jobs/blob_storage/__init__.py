"""Blobs for one machine or many: their interface, objects in object storage, local copies, and marks.

`api.jobs.storage.blobs` is the other implementation, on a local disk. Knows objects, files and who may delete
them; does not know what a blob holds.
"""
