"""Durable jobs: audio that was accepted is transcribed, even if the process dies in between.

    jobs = Jobs.open(settings, serving)
    jobs.start()
    await jobs.submissions.accept(owner, form, file, label, key)   # returns once all is on disk

A job's row is its place in the queue (`store`), `worker` claims it, `walk` does it. Text and audio are files:
the database holds states, codes and names.
"""
