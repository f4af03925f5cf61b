"""`forescribe bench transcribe`: transcription by this engine, transformers and faster-whisper.

Knows the jobs, their processes, the rows and the table; nothing of the command line.
"""
