"""The system of a job, loaded and ready.

Knows which module holds which system; nothing of how they work.
"""

from __future__ import annotations

from .job import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    GENERATE,
    MODULES,
    NAMES,
    OURS,
    SEQUENTIAL,
    Job,
    System,
)


def build(job: Job) -> System:
    """Load the system of a job. Raises whatever its library raises."""
    if job.system in (OURS, MODULES):
        from .ours import Ours

        return Ours(job)
    if job.system in (GENERATE, ASSISTED, ASSISTED_DEFAULTS):
        from .transformers_generate import Generate

        return Generate(job)
    if job.system in (SEQUENTIAL, BATCHED):
        from .faster import FasterWhisper

        return FasterWhisper(job)
    raise ValueError(f"unknown system {job.system!r}; known: {', '.join(NAMES)}")
