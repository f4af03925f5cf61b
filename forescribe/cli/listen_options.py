"""The options of `forescribe listen`: one record, checked once when it is made. Loads nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import UsageError

from .option_records import DECODING, DIAGNOSTICS, INPUT, MODEL, OUTPUT, arg, like, opt
from .options import AUTO, DecodingOptions, LoadOptions, RunOptions, SpeakerChoice
from .transcribe_options import STDOUT, TranscribeOptions

if TYPE_CHECKING:
    from forescribe.asr.live.events import LiveOptions

    from .speaker_options import SpeakerOptions

STDIN = "-"

DELAYS = ("minimal", "low", "medium", "high", "xhigh")
"""Those of `asr.live.commit`, which takes too long to import here."""

TURNS = ("pause", "sentence", "none")

EMBEDDED = "embedded"
"""The engine that finds the speakers of live lines, whichever that of the files is."""


@dataclass(frozen=True, kw_only=True)
class ListenOptions(LoadOptions, SpeakerChoice):
    """The parsed command line. Raises UsageError for values and combinations that are impossible."""

    audio: str | None = arg("[-]", "- reads stdin; without it, the microphone is used.", None)
    # Input
    input: str | None = opt(
        INPUT,
        "--input DEVICE",
        "Microphone, by its number in --list-devices or a part of its name.",
        shown="the system's",
    )
    list_devices: bool = opt(INPUT, "--list-devices", "List microphones and exit.", False)
    rate: int = opt(INPUT, "--rate HZ", "Sample rate of raw audio (s16le) from stdin.", 16_000)
    channels: int = opt(INPUT, "--channels N", "Channels of raw audio from stdin.", 1)
    replay: str | None = opt(
        INPUT, "--replay FILE", "Play back a recording as if it were spoken now."
    )
    speed: str = opt(
        INPUT,
        "--speed FACTOR",
        "Speed of --replay; max, or 0, is as fast as every step can be decoded.",
        "1",
    )
    max_minutes: float | None = opt(
        INPUT, "--max-minutes MINUTES", "End after so much audio.", shown="no limit"
    )
    # Output
    words: bool = opt(
        OUTPUT,
        "--words/--lines",
        "Write words when they are released, though the rest of a turn may contradict them, or lines when "
        "turns are complete (default).",
        False,
    )
    output_dir: str | None = like(
        RunOptions,
        "output_dir",
        "Folder for the transcript of the whole session, here or in object storage.",
        default=None,
        shown="no files",
    )
    output_format: str = like(TranscribeOptions, "output_format")
    word_timestamps: bool | None = like(TranscribeOptions, "word_timestamps")
    keep_audio: bool = opt(
        OUTPUT,
        "--keep-audio/--no-keep-audio",
        "Write the audio beside the transcript (flac).",
        False,
    )
    # Model
    server: str | None = opt(
        MODEL,
        "--server URL",
        "Let a server transcribe: `forescribe serve`, or another with OpenAI's /v1/realtime; the key is "
        "OPENAI_API_KEY.",
    )
    # Decoding
    language: str | None = like(DecodingOptions, "language")
    task: str = like(DecodingOptions, "task")
    initial_prompt: str | None = like(
        TranscribeOptions, "initial_prompt", names="--prompt --initial-prompt TEXT"
    )
    step: float = opt(
        DECODING, "--step SECONDS", "Decode after so much more speech.", 1.0, min=0.1, max=10
    )
    delay: str = opt(
        DECODING,
        "--delay DELAY",
        f"How certain a word is before it is released: {', '.join(DELAYS)}.",
        "medium",
    )
    turns: str = opt(
        DECODING,
        "--turns METHOD",
        "What ends a line. pause: silence. sentence: silence, up to 4 s where words end no sentence. none: "
        "the audio's end.",
        "pause",
    )
    silence: float = opt(
        DECODING, "--silence SECONDS", "Silence that ends a turn.", 0.8, min=0.1, max=30
    )
    # Speakers, performance, diagnostics
    diarize: bool = like(
        TranscribeOptions,
        "diarize",
        "Begin lines with their speakers, who are found at the end of a turn, and after the end label every "
        "word of the transcript in --output-dir.",
    )
    batch_size: int = like(LoadOptions, "batch_size", default=2)
    quiet: bool = opt(
        DIAGNOSTICS,
        "--quiet/--no-quiet -q",
        "Show errors only: no changing text, no summary.",
        False,
    )

    def __post_init__(self) -> None:
        _ = self.drafts
        _ = self.pace
        self._check_input()
        self._check_server()
        if self.delay not in DELAYS:
            raise UsageError(f"--delay {self.delay} is none of {', '.join(DELAYS)}")
        if self.turns not in TURNS:
            raise UsageError(f"--turns {self.turns} is none of {', '.join(TURNS)}")
        if self.turns == "none" and not self.words and self.output_dir is None:
            raise UsageError(
                "--turns none writes a line at the end only: add --words, or -o for files"
            )
        if self.output_dir == STDOUT:
            raise UsageError("-o -: stdout has the lines already; name a folder")
        self._check_files()
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise UsageError(f"--max-minutes {self.max_minutes:g}: give minutes above 0")
        _ = self.speakers

    def _check_input(self) -> None:
        if self.audio not in (None, STDIN):
            raise UsageError(
                f"listen takes - for stdin, or nothing for the microphone, not {self.audio}: play back a "
                "recording with --replay FILE, or use `forescribe transcribe FILE`"
            )
        given = [
            name
            for name, value in (
                ("- (stdin)", self.audio),
                ("--replay", self.replay),
                ("--input", self.input),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are two inputs: choose one of them")
        if self.audio is None and (self.rate, self.channels) != (16_000, 1):
            raise UsageError("--rate and --channels are those of raw audio from stdin: add -")
        if self.replay is None and self.speed != "1":
            raise UsageError("--speed is that of --replay")

    def _check_files(self) -> None:
        """What is for files only."""
        if self.output_dir is not None:
            return
        if self.diarize and self.words:
            raise UsageError(
                "--words writes words before their speakers are known: leave out --words or --diarize, or "
                "add -o FOLDER for files with speakers"
            )
        other = self.diarizer not in (AUTO, EMBEDDED)
        for named, given in (
            ("--keep-audio", self.keep_audio),
            (f"--diarizer {self.diarizer}", self.diarize and other),
        ):
            if given:
                raise UsageError(f"{named} is for the files of the session: add -o FOLDER")

    def _check_server(self) -> None:
        """What a server decides cannot be an option here."""
        if self.server is None:
            return
        here = {f.name for f in (*fields(LoadOptions), *fields(SpeakerChoice))} - {"model"}
        here |= {"task", "step", "word_timestamps"}
        here |= {"silence"} if self.turns == "sentence" else set()
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in here and value != option.default:
                named = option.metadata["cli"].names.split()[0].partition("/")[0]
                raise UsageError(f"{named} cannot be chosen with --server: leave out one of them")

    @property
    def pace(self) -> float | None:
        """The factor of --speed; None for no pace. Raises UsageError."""
        try:
            factor = 0.0 if self.speed.lower() == "max" else float(self.speed)
        except ValueError:
            factor = math.nan
        if not 0 <= factor <= 1000:
            raise UsageError(f"--speed {self.speed} is neither max nor a number from 0 to 1000")
        return factor or None

    @cached_property
    def speakers(self) -> SpeakerOptions:
        """The options for speakers."""
        from .speaker_options import SpeakerOptions

        return SpeakerOptions(
            self.diarizer if self.diarize else None,
            self.bounds,
            self.known,
        )

    @property
    def labels(self) -> bool:
        """Whether lines have speakers."""
        return self.diarize and not self.words

    @property
    def formats(self) -> str:
        """The output formats; `all` includes rttm if there are speakers."""
        more = ",rttm" if self.diarize and "all" in self.output_format.lower() else ""
        return self.output_format + more

    @property
    def limit_s(self) -> float:
        return math.inf if self.max_minutes is None else 60 * self.max_minutes

    @property
    def stem(self) -> str:
        """The name of the files: of a recording its own, else the time."""
        if self.replay is not None:
            return f"{Path(self.replay).stem}-live"
        return time.strftime("live-%Y-%m-%d-%H%M%S")

    def live(self) -> LiveOptions:
        """The options of the stream."""
        from forescribe.asr.decode.options import Guards, Options
        from forescribe.asr.live.events import LiveOptions
        from forescribe.asr.live.turns import Turns

        eagerness = "auto" if self.turns == "sentence" else None
        return LiveOptions(
            Options(
                language=self.language,
                task=self.task,  # type: ignore[arg-type]  # checked by Options
                initial_prompt=self.initial_prompt,
                words=bool(self.word_timestamps) or self.diarize,
                guards=Guards(),
            ),
            step_s=self.step,
            delay=self.delay,  # type: ignore[arg-type]  # checked above
            turns=None
            if self.turns == "none"
            else Turns(silence_s=self.silence, eagerness=eagerness),  # type: ignore[arg-type]
            speech=self.labels if self.server is None else self.diarize,
        )
