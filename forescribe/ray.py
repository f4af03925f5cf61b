"""Transcription in pipelines of Ray Data.

    import ray
    from forescribe.ray import transcribe

    dataset = ray.data.from_items([{"path": "calls/a.mp3"}])
    print(transcribe(dataset, model="tiny.en").take_all())

Needs the extra `cluster`; see docs/cluster.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["transcribe"]


def transcribe(
    dataset: Dataset,
    *,
    workers: int | None = None,
    path_column: str = "path",
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    **options: Any,
) -> Dataset:
    """Add transcripts to the rows of a dataset.

    A row keeps its columns and gets `text`, `language`, `audio_s`, `transcript` (JSON, as `-f json` writes
    it), and, where a recording fails, `code` and `message` instead. `workers` is the number of actors (None:
    as many as there is room for), each with the given resources; without any, one GPU if the cluster has one.
    `options` are those of `forescribe transcribe`, by their names in Python.

    Rows over which three actors die end the pipeline, unless `DataContext.max_errored_blocks` lets it go on
    without them. Raises TypeError for options that are unknown, UsageError for those that contradict each
    other.
    """
    import ray

    from .cli.transcribe import work_order
    from .cli.transcribe_options import TranscribeOptions
    from .cluster import workers as actors

    options = {"word_timestamps" if name == "words" else name: v for name, v in options.items()}
    order = work_order(TranscribeOptions(audio=[], cluster="auto", **options), [])
    if num_gpus is None and resources is None and options.get("device", "auto") != "cpu":
        num_gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else None
    return actors.transcribe(
        dataset,
        order,
        workers=workers,
        path_column=path_column,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
    )
