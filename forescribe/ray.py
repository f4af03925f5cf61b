"""Transcription in pipelines of Ray Data: the operator, and the call that applies it.

    import ray
    from forescribe.ray import transcribe

    dataset = ray.data.from_items([{"path": "calls/a.mp3"}])
    print(transcribe(dataset, model="tiny.en").take_all())

Needs the extra `cluster`; see docs/cluster.md.
"""

from .cluster.operator import Marks, Transcribe, transcribe

__all__ = ["Marks", "Transcribe", "transcribe"]
