"""What resumes a job after a crash: the interface, and the engines that implement it.

Knows workflows, steps and their records; does not know transcription.
"""
