"""Durable jobs: audio that was accepted is transcribed, even if the process dies in between.

    jobs = Jobs.open(settings, serving)
    jobs.start()
    jobs.submissions.submit(new, audio)   # returns once audio and parameters are on disk

`storage` keeps rows and files, `execution` does the work, `engines` resumes it after a crash; only
`engines.dbos_engine` knows the workflow library. Text and audio are blobs: the database holds states,
codes and hashes.
"""
