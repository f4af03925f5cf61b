"""Records of a run, one object per recording, created once: in object storage or in a shared folder.

Knows recordings by name or location, runs, records and how two writers are told apart; nothing of audio,
of engines or of who does the work. Whoever repeats a piece of work finds its record there already.
"""
