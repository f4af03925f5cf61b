"""What carries a job over a crash: the interface, and the engines behind it.

Knows steps and their records; nothing of transcription.
"""
