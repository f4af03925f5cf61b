"""The sentences of the speech corpus, how they are read aloud, and the vocabulary made from them.

Knows text only: nothing of audio, models or training.
"""
