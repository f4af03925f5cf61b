"""What a card can show in one command: `python -m benchmarks.gpu`.

Models have large-v3's and distil-large-v3's dimensions and *constructed* weights: nothing is downloaded,
and how often the draft agrees with the target is set. Figures of speed hold for these dimensions; tokens
mean nothing.
"""
