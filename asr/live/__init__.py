"""Live transcription: audio that is still being spoken, on the session that uploads use too."""
