"""Declarations of the options that only `forescribe transcribe` has.

Knows the words of `--help`; defaults and checks belong to `TranscribeOptions`.
"""

from __future__ import annotations

from typing import Annotated

from .option_records import DECODING, DIAGNOSTICS, OUTPUT, PERFORMANCE, SPEAKERS, option

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
