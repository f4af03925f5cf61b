"""`forescribe.transcribe`: one recording to a transcript, in one call.

    from forescribe import transcribe

    print(transcribe("meeting.mp3").text)
    print(transcribe(samples, sample_rate=48_000).text)

Knows how a transcriber and a diarizer are combined for a single recording. For several recordings,
progress or further options, use `Transcriber`, which loads the model once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from forescribe.asr.audio.inputs import Input, as_input
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import CapacityError, UsageError
from forescribe.asr.model.special_tokens import Task

if TYPE_CHECKING:
    import os

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from forescribe.asr.formats.transcript import Transcript

    Samples = NDArray[np.floating[Any] | np.integer[Any]] | torch.Tensor
    Audio = (
        str
        | os.PathLike[str]
        | bytes
        | BinaryIO
        | Samples
        | tuple[Samples, int]
        | tuple[int, Samples]
        | Mapping[str, Any]
    )


log = logging.getLogger(__name__)


def transcribe(
    audio: Audio,
    model: str | None = None,
    draft: str | None = None,
    *,
    sample_rate: int | None = None,
    language: str | None = None,
    task: Task = "transcribe",
    initial_prompt: str | None = None,
    hint: str | None = None,
    word_timestamps: bool = False,
    diarize: bool = False,
    num_speakers: int | None = None,
    device: str | None = None,
    local_files_only: bool = False,
) -> Transcript:
    """Transcribe one recording, with the defaults of `forescribe transcribe`.

    The model is loaded in each call. For several recordings, make a `Transcriber` once.

    Args:
        audio: a path, an address (http, https, s3, gs, az, hf), "-" for stdin, the bytes of a file, or a
            binary file object. Or samples: an array of numpy or a tensor of torch, [T], [T, C] or [C, T],
            floats from -1 to 1 or integers of 8, 16 or 32 bits; they need `sample_rate`, or come as
            `(samples, rate)` or as a dictionary of Hugging Face's datasets.
        sample_rate: rate of samples, in Hz; files say their own.
        model: preset (`forescribe models` lists them), Hugging Face id or local folder; None is "large".
        draft: draft model, named likewise; None is the model's own, "none" drafts by lookup only.
        language: code or English name of the spoken language; None detects it.
        task: "transcribe", or "translate" into English.
        initial_prompt: text with names and spellings to expect.
        hint: text that is probably spoken, such as a script: drafts are copied from it, which saves time
            and changes no word.
        word_timestamps: give every segment its words with their times.
        diarize: label segments and words with speakers; includes word times.
        num_speakers: exact number of speakers, if known; needs `diarize`.
        device: "cuda", "cuda:1", "hpu", "mps" or "cpu"; None chooses one.
        local_files_only: use downloaded weights only; never access the network.

    Raises:
        AudioError: the recording cannot be read, or samples are empty or not finite.
        StorageError: an address cannot be fetched.
        ModelError: the weights are missing or cannot be loaded.
        UsageError: an option is impossible for this model, or contradicts another; samples without a
            rate, or of a shape or type that is none.
        DeviceError: the device does not exist.

    All but DeviceError (a `forescribe.speculative.errors.SpeculativeError`) are `ForescribeError`.
    """
    if num_speakers is not None and not diarize:
        raise UsageError("num_speakers needs diarize=True")
    source = as_input(audio, sample_rate)
    options = Options(
        language=language,
        task=task,
        initial_prompt=initial_prompt,
        hint=hint,
        words=word_timestamps,
        guards=Guards(),
    )
    network = not local_files_only
    transcriber = Transcriber.load(
        model,
        draft,
        language=language,
        device=device,
        network=network,
        drafter="auto" if hint is None else "cascade",
    )
    with _local(source) as recording:
        if diarize:
            from forescribe.diarize.diarizer import Bounds
            from forescribe.diarize.engines.registry import load
            from forescribe.diarize.transcribers import DiarizingTranscriber

            diarizer = load(device=device or "auto", network=network)
            speakers = DiarizingTranscriber(transcriber, diarizer, Bounds(num_speakers))
            outcomes = speakers.transcribe([recording], options)
        else:
            outcomes = transcriber.transcribe([recording], options)
        (outcome,) = outcomes
    if outcome.error is not None:
        raise outcome.error
    assert outcome.transcript is not None
    return outcome.transcript


@contextmanager
def _local(source: Input) -> Iterator[Input]:
    """The recording on this machine: one at an address is fetched, as by the command, and its copy removed.
    Raises StorageError, AudioError."""
    from forescribe.asr.storage.locations import Location, is_url

    if not isinstance(source, str) or not is_url(source):
        yield source
        return
    from forescribe.asr.batch.spool import Spool
    from forescribe.asr.records.sources import Source
    from forescribe.asr.storage.stores import Stores, telling

    location = Location.parse(source)
    remote = Source(location.identity, location=location)
    spool = Spool(Stores(telling(log.warning)))
    try:
        spool.order([remote])
        copy = spool.take(remote)
        if copy is None:
            raise CapacityError(
                f"{location}: no room for a copy on the disk of {spool.folder.path}"
            )
        yield copy
    finally:
        spool.close()
