"""Speaker diarization: who speaks when, and a speaker for every word of a transcript."""
