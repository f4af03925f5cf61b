"""`forescribe.transcribe`: one recording to a transcript, in one call.

    from forescribe import transcribe

    print(transcribe("meeting.mp3").text)

Knows how a transcriber and a diarizer are combined for a single recording. For several recordings,
progress or further options, use `Transcriber`, which loads the model once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forescribe.asr.decode.guards import Guards
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.model.special_tokens import Task

if TYPE_CHECKING:
    from forescribe.asr.audio.reading import Input
    from forescribe.asr.formats.transcript import Transcript


def transcribe(
    audio: Input,
    model: str | None = None,
    draft: str | None = None,
    *,
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
        audio: path, bytes of a file, or a binary file object; "-" reads stdin.
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
        AudioError: the recording cannot be read.
        ModelError: the weights are missing or cannot be loaded.
        UsageError: an option is impossible for this model, or contradicts another.
        DeviceError: the device does not exist.

    All but DeviceError (a `forescribe.speculative.errors.SpeculativeError`) are `ForescribeError`.
    """
    if num_speakers is not None and not diarize:
        raise UsageError("num_speakers needs diarize=True")
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
    if diarize:
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.engines.registry import load
        from forescribe.diarize.transcripts.diarizing_transcriber import DiarizingTranscriber

        diarizer = load(device=device or "auto", network=network)
        speakers = DiarizingTranscriber(transcriber, diarizer, Bounds(num_speakers))
        outcomes = speakers.transcribe([audio], options)
    else:
        outcomes = transcriber.transcribe([audio], options)
    (outcome,) = outcomes
    if outcome.error is not None:
        raise outcome.error
    assert outcome.transcript is not None
    return outcome.transcript
