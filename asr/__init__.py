"""Speech recognition: recordings to transcripts, with Whisper and a draft for it."""
