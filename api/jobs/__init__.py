"""Durable jobs: audio that was accepted is transcribed, even if the process dies in between.

    jobs = Jobs.open(settings, serving)
    jobs.start()
    jobs.submissions.submit(new, audio)   # returns once audio and parameters are on disk

A job's row is its place in the queue (`store`), `worker` claims it, `walk` does it. Text and audio are blobs:
the database holds states, codes and hashes.
"""
