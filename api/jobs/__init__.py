"""Durable jobs: audio that was accepted is transcribed, even if the process dies in between.

    jobs = Jobs.open(settings, serving)
    jobs.start()
    jobs.submissions.submit(new, audio)   # returns once audio and parameters are on disk

Only `dbos_engine` knows the library that runs workflows. Text and audio are blobs: the database holds states,
codes and hashes.
"""
