"""Files that clients keep on the server, as OpenAI's `/v1/files`: input and output of batches, and audio.

Rows in the job database and blobs with references, as jobs have them. Knows SQL and blobs; does not know
HTTP or what the files are used for.
"""
