"""The systems that are compared with each other, and the processes in which they run."""
