"""Durable jobs: audio that was accepted is transcribed, whatever happens to the process meanwhile.

    jobs = Jobs.of(settings, serving)
    jobs.start()
    jobs.submit(new, audio)             # returns once audio and parameters are on disk

Text and audio are in the blob store, the database holds states, codes and hashes. What carries work over
a crash is behind `JobEngine`; only `durable` knows which library that is.
"""
