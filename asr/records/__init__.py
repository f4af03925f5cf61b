"""Records of a run, one object per recording, created once: in object storage or in a shared folder.

Knows runs, records and how two writers are told apart; nothing of audio, engines or who does the work.
Whoever repeats a piece of work finds its record there already.
"""
