"""The options of `forescribe transcribe`: one record, checked once when it is made.

Knows which combinations are impossible, and which options can change a result; loads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from forescribe.asr.decode.declared import AUTO
from forescribe.asr.decode.options import DECLARED, Options
from forescribe.asr.errors import UsageError

from .export import SubtitleOptions
from .option_records import DIAGNOSTICS, OUTPUT, PERFORMANCE, SPEAKERS, arg, opt
from .options import (
    FLAGS,
    MIX,
    RECORDINGS,
    SPLIT,
    RunOptions,
    SpeakerOptions,
    SpeechOptions,
    decodes,
    flag,
)

STDOUT = "-"

HERE = "here"
"""In place of a cluster's address: workers on this machine."""

NOT_IN_RESULTS = frozenset(
    "audio recursive spool output_dir output_format overwrite dry_run fail_fast model draft "
    "gamma batch_size device threads readers engine draft_dtype cluster workers "
    "report local_files_only verbose quiet records stats "
    # The fingerprint holds these in the form of `SpeakerOptions.speaker_settings`.
    "diarize diarizer num_speakers min_speakers max_speakers known channels".split()
) | {name for name, flag in FLAGS.items() if not flag.changes}
"""Options that change no word: every other option is part of a result's fingerprint. A draft model or
its length changes no word in float32; in half precision it may flip a near-tie, which is no reason to
transcribe a folder again."""


@dataclass(frozen=True, kw_only=True)
@decodes()
class TranscribeOptions(RunOptions, SubtitleOptions, SpeakerOptions, SpeechOptions):
    """The parsed command line, by field as typed. Raises UsageError for values and
    combinations that are impossible."""

    audio: list[str] = arg("AUDIO...", RECORDINGS)
    # Output
    word_timestamps: bool | None = flag("word_timestamps")
    report: str | None = opt(
        OUTPUT, "PATH", "Page with text and sound: FILE.html, or a folder for several."
    )
    # Speakers
    diarize: bool = opt(SPEAKERS, "", "Label every word with its speaker.", False)
    channels: str = opt(
        SPEAKERS, "METHOD", "mix all channels; split: each channel is one speaker.", MIX
    )
    # Performance
    threads: int = opt(
        PERFORMANCE, "N", "CPU threads; 0 leaves the number to PyTorch.", 0, min=0, max=1024
    )
    readers: int | None = opt(
        PERFORMANCE,
        "N",
        "Processes that decode recordings ahead of the model; 0 decodes in this one. Same text.",
        shown="auto: 0 on CPUs, else up to 8",
        min=0,
    )
    cluster: str | None = opt(
        PERFORMANCE,
        "ADDRESS",
        "Ray cluster: ray://HOST:10001, HOST:6379, or auto (on this machine).",
    )
    workers: int | None = opt(
        PERFORMANCE,
        "N",
        "Processes on this machine, one per GPU; with --cluster, workers on it.",
        shown="1; on a cluster one per GPU or 4 cores",
        min=1,
    )
    # Diagnostics
    dry_run: bool = opt(
        DIAGNOSTICS, "", "List recordings and their results without transcribing.", False
    )
    stats: bool = opt(
        DIAGNOSTICS, "", "Say in the last line what drafts brought, and what computed.", False
    )
    fail_fast: bool = opt(DIAGNOSTICS, "", "Stop at the first failure.", False)
    verbose: bool = opt(DIAGNOSTICS, "-v", "Print segments as they are decoded.", False)

    def __post_init__(self) -> None:
        _ = self.drafts
        self.check_speakers()
        self._check_output()
        if self.word_timestamps is False and (self.diarize or not self.line_rules.plain):
            what = "speakers" if self.diarize else "subtitle options"
            raise UsageError(f"{what} need the words' times: leave out --no-word-timestamps")
        self.check_search()
        if self.readers and self.channels == SPLIT:
            raise UsageError("--readers: channels are decoded one by one; leave it out")
        if self.workers_at is not None and "-" in self.audio:
            option = "--cluster" if self.cluster else f"--workers {self.workers}"
            raise UsageError(f"{option}: workers cannot read stdin; write it to a file first")
        if self.known and self.cluster:
            raise UsageError(
                "--known uses the voices that are enrolled on this machine, which others do not have; "
                "leave out --known or --cluster"
            )

    def _check_output(self) -> None:
        from forescribe.asr.formats.files import OF_SPEAKERS
        from forescribe.asr.storage.locations import is_url

        if self.report is not None and any(map(is_url, (self.output_dir, *self.audio))):
            raise UsageError(
                "--report plays files of this machine: leave it out where there are URLs"
            )
        listing = next(filter(OF_SPEAKERS.__contains__, self._formats), None)
        if listing is not None and not self.names_speakers:
            raise UsageError(f"-f {listing} lists speakers: add --diarize")
        if self.records and self.output_dir == STDOUT:
            raise UsageError("--records and `-o -` both write to stdout; choose one of them")

    @property
    def workers_at(self) -> str | None:
        """The address of the workers' cluster, `HERE` for one that this run starts; None for this process."""
        several = self.workers is not None and self.workers > 1
        return HERE if self.cluster is None and several else self.cluster

    @property
    def _formats(self) -> list[str]:
        return self.output_format.replace(" ", "").lower().split(",")

    @property
    def formats(self) -> str:
        """The output formats; `all` includes those of speakers if there are speakers."""
        from forescribe.asr.formats.files import OF_SPEAKERS

        more = OF_SPEAKERS if self.names_speakers and "all" in self._formats else ()
        return ",".join([self.output_format, *sorted(more)])

    @property
    def wants_words(self) -> bool | None:
        """Whether word times are written; a report shows them unless they are switched off."""
        if self.report is not None and self.word_timestamps is None:
            return True
        return self.word_timestamps

    @property
    def timed(self) -> Options:
        """The options of a transcription call, with word times where the results have them."""
        words = bool(self.wants_words) or not self.line_rules.plain
        return replace(self.decoding, words=words)

    def result_settings(self, beams: int | None = None) -> dict[str, Any]:
        """The options that decide a result's words, for its fingerprint; defaults are left out. `beams` are
        the model's own."""
        decoding = self.decoding.settled(beams)
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "word_timestamps": self.wants_words,
            # An option that is gone: without it, all results of the version before would be made again.
            "long_form": "windows",
        }
        for name, own in DECLARED.items():
            if own.kept is not None:
                values[own.flags[0].name] = own.kept(getattr(decoding, name))
        return {
            name: value
            for name, value in values.items()
            if name not in NOT_IN_RESULTS
            and value is not None
            and value is not False
            and value != AUTO
        }
