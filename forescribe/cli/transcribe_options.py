"""The options of `forescribe transcribe`: one record, checked once when it is made.

Knows which combinations are impossible, and which options can change a result; loads nothing.

Declarations of the options that only `forescribe transcribe` has.

Knows the words of `--help`; defaults and checks belong to `TranscribeOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from forescribe.asr.errors import UsageError

from . import options, speaker_options
from .option_records import DECODING, DIAGNOSTICS, OUTPUT, PERFORMANCE, SPEAKERS, option
from .options import (
    AUTO,
    BatchSize,
    ClusterAddress,
    DeviceName,
    DiarizerName,
    Draft,
    DraftDtype,
    DrafterName,
    Dtype,
    EngineName,
    Gamma,
    Inputs,
    JsonRecords,
    KnownSpeakers,
    Language,
    LinkSpeakers,
    LocalFilesOnly,
    MaxSpeakers,
    MinSpeakers,
    Model,
    NumSpeakers,
    OutputFolder,
    Overwrite,
    Quantize,
    Quiet,
    Recursive,
    SpoolBytes,
    SpoolFolder,
    Task,
    Vad,
    WorkerCount,
    parse_bytes,
    parse_gamma,
    refuse_links,
    shown_url,
)

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Guards, Options
    from forescribe.asr.formats.subtitles import LineRules

    from .speaker_options import SpeakerOptions


OutputFormats = Annotated[
    str,
    option(
        OUTPUT,
        "--output-format",
        "-f",
        metavar="FORMATS",
        help="Comma-separated list of txt, srt, vtt, tsv, json, rttm and all.",
    ),
]
Timestamps = Annotated[
    bool,
    option(OUTPUT, "--timestamps/--no-timestamps", help="Divide the text into timed segments."),
]
WordTimestamps = Annotated[
    bool | None,
    option(
        OUTPUT,
        "--word-timestamps/--no-word-timestamps",
        help="Add times and a probability to every word (json).",
    ),
]
MaxLineWidth = Annotated[
    int | None,
    option(
        OUTPUT,
        "--max-line-width",
        metavar="CHARS",
        min=1,
        help="Subtitles: maximum characters per line.",
    ),
]
MaxLineCount = Annotated[
    int | None,
    option(
        OUTPUT,
        "--max-line-count",
        metavar="LINES",
        min=1,
        help="Subtitles: maximum lines shown at once.",
    ),
]
MaxWordsPerLine = Annotated[
    int | None,
    option(
        OUTPUT,
        "--max-words-per-line",
        metavar="WORDS",
        min=1,
        help="Subtitles: maximum words per line.",
    ),
]
HighlightWords = Annotated[
    bool,
    option(
        OUTPUT,
        "--highlight-words/--no-highlight-words",
        help="Subtitles: underline each word while it is spoken.",
    ),
]
ReportPath = Annotated[
    str | None,
    option(
        OUTPUT,
        "--report",
        metavar="PATH",
        help="Write a page with text and sound: FILE.html for one recording, else a folder.",
    ),
]
InitialPrompt = Annotated[
    str | None,
    option(
        DECODING,
        "--initial-prompt",
        metavar="TEXT",
        help="Text with names and spellings to expect.",
    ),
]
ReferenceText = Annotated[
    str | None,
    option(
        DECODING,
        "--reference-text",
        metavar="FILE",
        help="Script or earlier transcript (txt, srt, vtt, tsv, json) to copy drafts from, above all "
        "without a draft model; the words stay the same.",
    ),
]
LongFormMethod = Annotated[
    str,
    option(
        DECODING,
        "--long-form",
        metavar="METHOD",
        help="windows: decode windows in parallel. sequential: Whisper's own method, each window "
        "starts at the last timestamp of the one before; slower.",
    ),
]
ConditionOnPreviousText = Annotated[
    bool | None,
    option(
        DECODING,
        "--condition-on-previous-text/--no-condition-on-previous-text",
        help="Sequential only: give each window the text before it.  [default: yes]",
    ),
]
UseGuards = Annotated[
    bool,
    option(
        DECODING,
        "--guards/--no-guards",
        help="Decode repetitive or improbable windows again at rising temperatures, and drop text "
        "over silence.",
    ),
]
CompressionRatioThreshold = Annotated[
    str | None,
    option(
        DECODING,
        "--compression-ratio-threshold",
        metavar="RATIO",
        help="Text that compresses better than this is repetitive; None turns it off.  "
        "[default: 2.4]",
    ),
]
LogprobThreshold = Annotated[
    str | None,
    option(
        DECODING,
        "--logprob-threshold",
        metavar="LOGPROB",
        help="Text with a mean log-probability below this is improbable; None turns it off.  "
        "[default: -1.0]",
    ),
]
NoSpeechThreshold = Annotated[
    str | None,
    option(
        DECODING,
        "--no-speech-threshold",
        metavar="PROB",
        help="A no-speech probability above this is silence; None turns it off.  [default: 0.6]",
    ),
]
TemperatureIncrementOnFallback = Annotated[
    str | None,
    option(
        DECODING,
        "--temperature-increment-on-fallback",
        metavar="STEP",
        help="Temperature increase from one attempt to the next; None allows one attempt.  "
        "[default: 0.2]",
    ),
]
UseDiarization = Annotated[
    bool, option(SPEAKERS, "--diarize/--no-diarize", help="Label every word with its speaker.")
]
ChannelMethod = Annotated[
    str,
    option(
        SPEAKERS,
        "--channels",
        metavar="METHOD",
        help="mix: transcribe all channels as one. split: transcribe each channel as one speaker.",
    ),
]
ThreadCount = Annotated[
    int,
    option(
        PERFORMANCE,
        "--threads",
        metavar="N",
        min=0,
        max=1024,
        help="CPU threads; 0 leaves the number to PyTorch.",
    ),
]
ReaderCount = Annotated[
    int | None,
    option(
        PERFORMANCE,
        "--readers",
        metavar="N",
        min=0,
        help="Processes that decode recordings ahead of the model; 0 decodes in this one. Same text.",
        show_default="auto: 0 on CPUs, else up to 8",
    ),
]
DryRun = Annotated[
    bool,
    option(
        DIAGNOSTICS,
        "--dry-run/--no-dry-run",
        help="List recordings and their results without transcribing.",
    ),
]
FailFast = Annotated[
    bool,
    option(DIAGNOSTICS, "--fail-fast/--no-fail-fast", help="Stop at the first failure."),
]
Verbose = Annotated[
    bool,
    option(DIAGNOSTICS, "--verbose/--no-verbose", "-v", help="Print segments as they are decoded."),
]


STDOUT = "-"

PAGES = frozenset({"html", "htm", "report"})
"""What people call the page of --report where formats are named."""

DRAFTERS = (AUTO, "model", "cascade")
"""Those of `asr.decode.drafting`, which takes too long to import here."""

NOT_IN_RESULTS = frozenset(
    "audio recursive spool spool_bytes output_dir output_format overwrite dry_run fail_fast model draft "
    "gamma batch_size drafter reference_text device threads readers engine draft_dtype cluster workers "
    "report local_files_only verbose quiet json".split()
) | {
    # The fingerprint holds these in the form of `SpeakerOptions.settings`.
    "diarize",
    "diarizer",
    "num_speakers",
    "min_speakers",
    "max_speakers",
    "known",
    "link_speakers",
    "channels",
}
"""Options that change no word: every other option is part of a result's fingerprint. A draft model or
its length changes no word in float32; in half precision it may flip a near-tie, which is no reason to
transcribe a folder again."""


@dataclass(frozen=True)
class TranscribeOptions:
    """The parsed command line, by field as typed. Raises UsageError for values and
    combinations that are impossible."""

    # Input
    audio: Inputs
    recursive: Recursive = False
    spool: SpoolFolder = None
    spool_bytes: SpoolBytes = None
    # Output
    output_dir: OutputFolder = "."
    output_format: OutputFormats = "all"
    overwrite: Overwrite = False
    timestamps: Timestamps = True
    word_timestamps: WordTimestamps = None
    max_line_width: MaxLineWidth = None
    max_line_count: MaxLineCount = None
    max_words_per_line: MaxWordsPerLine = None
    highlight_words: HighlightWords = False
    report: ReportPath = None
    # Model
    model: Model = None
    draft: Draft = None
    local_files_only: LocalFilesOnly = False
    # Decoding
    language: Language = None
    task: Task = "transcribe"
    initial_prompt: InitialPrompt = None
    reference_text: ReferenceText = None
    vad: Vad = None
    long_form: LongFormMethod = "windows"
    condition_on_previous_text: ConditionOnPreviousText = None
    guards: UseGuards = True
    compression_ratio_threshold: CompressionRatioThreshold = None
    logprob_threshold: LogprobThreshold = None
    no_speech_threshold: NoSpeechThreshold = None
    temperature_increment_on_fallback: TemperatureIncrementOnFallback = None
    # Speakers
    diarize: UseDiarization = False
    diarizer: DiarizerName = AUTO
    num_speakers: NumSpeakers = None
    min_speakers: MinSpeakers = None
    max_speakers: MaxSpeakers = None
    known: KnownSpeakers = False
    link_speakers: LinkSpeakers = False
    channels: ChannelMethod = "mix"
    # Performance
    gamma: Gamma = AUTO
    drafter: DrafterName = AUTO
    batch_size: BatchSize = 8
    device: DeviceName = AUTO
    dtype: Dtype = AUTO
    quantize: Quantize = None
    draft_dtype: DraftDtype = AUTO
    engine: EngineName = AUTO
    threads: ThreadCount = 0
    readers: ReaderCount = None
    cluster: ClusterAddress = None
    workers: WorkerCount = None
    # Diagnostics
    dry_run: DryRun = False
    fail_fast: FailFast = False
    verbose: Verbose = False
    quiet: Quiet = False
    json: JsonRecords = False

    def __post_init__(self) -> None:
        _ = self.drafts
        _ = self.speakers
        _ = self.spool_limit
        self._check_locations()
        self._check_output()
        self._check_words()
        self._check_long_form()
        _ = self.active_guards
        self._check_drafter()
        if self.readers and self.channels == "split":
            raise UsageError("--readers: channels are decoded one by one; leave it out")
        options.check(self)

    def _check_drafter(self) -> None:
        if self.drafter not in DRAFTERS:
            raise UsageError(f"--drafter {self.drafter} is none of {', '.join(DRAFTERS)}")
        if self.drafter == "model" and self.reference_text is not None:
            raise UsageError(
                "--drafter model does not read --reference-text: leave out one of them"
            )
        _ = self.hint

    def _check_output(self) -> None:
        from forescribe.asr.formats.files import OF_SPEAKERS

        page = next((name for name in self._formats if name in PAGES), None)
        if page is not None:
            raise UsageError(
                f"-f {page}: a page is written by --report, beside the formats of -f; "
                "use --report FILE.html, or --report FOLDER for several recordings"
            )
        without = [name for name in self._formats if name in OF_SPEAKERS]
        if without and not self.speakers.requested:
            raise UsageError(f"-f {without[0]} lists speakers: add --diarize")
        if self.json and self.output_dir == STDOUT:
            raise UsageError("--json and `-o -` both write to stdout; choose one of them")
        if self.verbose and (self.quiet or self.json):
            raise UsageError("--verbose and --quiet (or --json) exclude each other")

    def _check_locations(self) -> None:
        from forescribe.asr.storage.locations import is_url

        remote = next(filter(is_url, (self.output_dir, *self.audio)), None)
        if remote is not None and self.report is not None:
            raise UsageError(
                f"--report plays files of this machine, {shown_url(remote)} is none: leave it out"
            )
        if self.output_dir.lower().startswith("memory://"):
            raise UsageError(
                f"-o {shown_url(self.output_dir)}: what is in memory ends with this command; name a folder, "
                "s3://, gs:// or az://"
            )
        refuse_links(self.link_speakers, self.output_dir)

    @property
    def spool_limit(self) -> int | None:
        """The size of the spool in bytes; None for the default. Raises UsageError."""
        return parse_bytes("--spool-bytes", self.spool_bytes)

    def _check_words(self) -> None:
        if self.word_timestamps is False and (self.diarize or not self.line_rules.plain):
            what = "speakers" if self.diarize else "subtitle options"
            raise UsageError(f"{what} need the words' times: leave out --no-word-timestamps")

    def _check_long_form(self) -> None:
        if self.long_form not in ("windows", "sequential"):
            raise UsageError(f"--long-form {self.long_form} is neither windows nor sequential")
        if self.long_form == "windows" and self.condition_on_previous_text:
            raise UsageError(
                "--condition-on-previous-text: windows are decoded in parallel, so there is no "
                "previous text; leave it out, or use --long-form sequential"
            )
        if self.long_form == "sequential" and self.vad:
            raise UsageError(
                "--vad: sequential decoding cuts at timestamps, not in pauses; leave it out"
            )

    @property
    def drafts(self) -> int | None:
        """Drafted tokens per round; None for auto."""
        return parse_gamma(self.gamma)

    @property
    def _formats(self) -> list[str]:
        return [name.strip().lower() for name in self.output_format.split(",")]

    @property
    def formats(self) -> str:
        """The output formats; `all` includes those of speakers if there are speakers."""
        from forescribe.asr.formats.files import OF_SPEAKERS

        more = OF_SPEAKERS if self.speakers.requested and "all" in self._formats else ()
        return ",".join([self.output_format, *sorted(more)])

    @cached_property
    def speakers(self) -> SpeakerOptions:
        """The options for speakers."""
        from forescribe.diarize.diarizer import Bounds

        from .speaker_options import SpeakerOptions

        return SpeakerOptions(
            self.diarizer if self.diarize else None,
            Bounds(self.num_speakers, self.min_speakers, self.max_speakers),
            self.known,
            self.channels,
            self.link_speakers,
        )

    @cached_property
    def line_rules(self) -> LineRules:
        """The options for subtitles."""
        from forescribe.asr.formats.subtitles import LineRules

        return LineRules(
            self.max_line_width, self.max_line_count, self.max_words_per_line, self.highlight_words
        )

    @cached_property
    def active_guards(self) -> Guards | None:
        """Guards with their thresholds; None if they are off."""
        return speaker_options.guards(
            self.guards,
            compression_ratio=self.compression_ratio_threshold,
            logprob=self.logprob_threshold,
            no_speech=self.no_speech_threshold,
            increment=self.temperature_increment_on_fallback,
        )

    @cached_property
    def hint(self) -> str | None:
        """The reference text. Raises UsageError for a file that holds none."""
        if self.reference_text is None:
            return None
        from forescribe.asr.formats.reference_text import read_reference_text

        return read_reference_text(self.reference_text)

    @property
    def draft_source(self) -> str:
        """What drafts: where a reference text is given, a drafter that reads it."""
        return "cascade" if self.drafter == AUTO and self.hint is not None else self.drafter

    @property
    def wants_words(self) -> bool | None:
        """Whether word times are written; a report shows them unless they are switched off."""
        if self.report is not None and self.word_timestamps is None:
            return True
        return self.word_timestamps

    def decoding(self) -> Options:
        """The options of a transcription call. Raises UsageError."""
        from forescribe.asr.decode.options import Options

        return Options(
            language=self.language,
            task=self.task,  # type: ignore[arg-type]  # checked by Options
            timestamps=self.timestamps,
            initial_prompt=self.initial_prompt,
            hint=self.hint,
            vad=self.vad is not False,
            words=bool(self.wants_words) or not self.line_rules.plain,
            guards=self.active_guards,
            long_form=self.long_form,  # type: ignore[arg-type]  # checked above
            condition_on_previous_text=self.condition_on_previous_text is not False,
        )

    def result_settings(self) -> dict[str, Any]:
        """The options that decide a result's words, for its fingerprint; defaults are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "language": self.language and self.language.lower(),
            "vad": self.vad is not False,
            "word_timestamps": self.wants_words,
        }
        return {
            name: value
            for name, value in values.items()
            if name not in NOT_IN_RESULTS
            and value is not None
            and value is not False
            and value != AUTO
        }
