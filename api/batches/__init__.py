"""Batches: many recordings by one file of requests, as OpenAI's `/v1/batches`. Each line is a durable job.

The state of a batch is in its rows and those of its lines, and every id is derived from the batch's id, so
a process that dies at any point is followed by one that goes on.
"""
