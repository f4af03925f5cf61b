"""Declarations of the options that several commands share: names, metavars and help texts.

Knows the words of `--help`; defaults and checks belong to the records that use a declaration.

The value of `--gamma`: a number of drafted tokens, or auto.

Knows the syntax and the largest number; nothing of schedules.

Values of options about object storage: sizes, and URLs in messages.

Knows how they are written; requests nothing.

The options of `forescribe transcribe` for a cluster, and which others cannot be used with it.

Knows words and combinations; nothing of Ray.
"""

from __future__ import annotations

import re
from typing import Annotated, Protocol

from forescribe.asr.errors import UsageError

from .option_records import (
    DECODING,
    DIAGNOSTICS,
    INPUT,
    MODEL,
    OUTPUT,
    PERFORMANCE,
    SPEAKERS,
    argument,
    option,
)

AUTO = "auto"

# Input

Inputs = Annotated[
    list[str],
    argument(
        "AUDIO...",
        help="Recordings or videos, folders, patterns ('calls/**/*.mp3') or lists (a .jsonl file with "
        "`audio_filepath` in each line), as paths or URLs (s3://, gs://, az://, hf://, https://); - reads "
        "stdin.",
    ),
]
Recursive = Annotated[
    bool,
    option(INPUT, "--recursive/--no-recursive", "-r", help="Search folders recursively."),
]

SpoolFolder = Annotated[
    str | None,
    option(
        INPUT,
        "--spool",
        metavar="DIR",
        help="Folder for local copies of recordings that are fetched.  [default: TMPDIR or /var/tmp]",
    ),
]
SpoolBytes = Annotated[
    str | None,
    option(
        INPUT,
        "--spool-bytes",
        metavar="SIZE",
        help="Maximum size of these copies together, such as 500MB or 20GB.  "
        "[default: half of the free space, at most 34 GB]",
    ),
]

# Output

OutputFolder = Annotated[
    str,
    option(
        OUTPUT,
        "--output-dir",
        "-o",
        metavar="DIR",
        help="Folder for results, here or in object storage (s3://, gs://, az://), or - for stdout.",
    ),
]
Overwrite = Annotated[
    bool,
    option(
        OUTPUT,
        "--overwrite/--resume",
        help="Replace existing results, or skip recordings whose results are up to date (default).",
    ),
]

# Model

Model = Annotated[
    str | None,
    option(
        MODEL,
        "--model",
        "-m",
        metavar="MODEL",
        help="Preset (see `forescribe models`), Hugging Face id or local folder.  [default: large]",
    ),
]
Draft = Annotated[
    str | None,
    option(
        MODEL,
        "--draft",
        "--draft-model",
        metavar="MODEL",
        help="Draft model, named like --model; `none` drafts by lookup in the text only.  "
        "[default: the model's own]",
    ),
]
DrafterName = Annotated[
    str,
    option(
        PERFORMANCE,
        "--drafter",
        metavar="NAME",
        help="model: the draft model alone. cascade: joined with drafts copied from --reference-text. auto: "
        "cascade where it costs nothing.",
    ),
]
LocalFilesOnly = Annotated[
    bool,
    option(
        MODEL,
        "--local-files-only/--no-local-files-only",
        help="Use downloaded weights only; never access the network.",
    ),
]

# Decoding

Language = Annotated[
    str | None,
    option(
        DECODING,
        "--language",
        "-l",
        metavar="LANG",
        help="Spoken language: code or English name.  [default: auto]",
    ),
]
Task = Annotated[
    str,
    option(
        DECODING,
        "--task",
        metavar="TASK",
        help="transcribe, or translate (into English).",
    ),
]
Vad = Annotated[
    bool | None,
    option(
        DECODING,
        "--vad/--no-vad",
        help="Skip long silence, or decode it too; both cut windows in pauses.  [default: vad]",
    ),
]

# Speakers

DiarizerName = Annotated[
    str,
    option(
        SPEAKERS,
        "--diarizer",
        metavar="ENGINE",
        help="Diarization engine: community-1, embedded, one of another package or a folder. auto is "
        "community-1 if it is downloaded, else embedded.",
    ),
]
NumSpeakers = Annotated[
    int | None,
    option(
        SPEAKERS, "--num-speakers", metavar="N", min=1, help="Exact number of speakers, if known."
    ),
]
MinSpeakers = Annotated[
    int | None,
    option(SPEAKERS, "--min-speakers", metavar="N", min=1, help="Minimum number of speakers."),
]
MaxSpeakers = Annotated[
    int | None,
    option(SPEAKERS, "--max-speakers", metavar="N", min=1, help="Maximum number of speakers."),
]
KnownSpeakers = Annotated[
    bool,
    option(
        SPEAKERS,
        "--known/--no-known",
        help="Name the people who were enrolled with `forescribe speakers add`.",
    ),
]
LinkSpeakers = Annotated[
    bool,
    option(
        SPEAKERS,
        "--link-speakers/--no-link-speakers",
        help="Give the same person the same label in all recordings; stores voices in speakers.jsonl "
        "in the output folder.",
    ),
]

# Performance

Gamma = Annotated[
    str,
    option(
        PERFORMANCE,
        "--gamma",
        metavar="N",
        help="Drafted tokens per round: 0 to 64, or auto; 0 turns drafting off.",
    ),
]
BatchSize = Annotated[
    int,
    option(
        PERFORMANCE,
        "--batch-size",
        metavar="N",
        min=1,
        max=1024,
        help="Windows decoded together.",
    ),
]
DeviceName = Annotated[
    str,
    option(PERFORMANCE, "--device", metavar="DEVICE", help="auto, cuda, cuda:N, hpu, mps or cpu."),
]
Dtype = Annotated[
    str,
    option(
        PERFORMANCE,
        "--dtype",
        metavar="TYPE",
        help="Number format of the weights: auto, float32, float16 or bfloat16.",
    ),
]
DraftDtype = Annotated[
    str,
    option(
        PERFORMANCE,
        "--draft-dtype",
        metavar="TYPE",
        help="Number format of the draft: auto, float32, float16, bfloat16 or int8. Same text.",
    ),
]
Quantize = Annotated[
    str | None,
    option(
        PERFORMANCE,
        "--quantize",
        metavar="TYPE",
        help="none, or int8: the model's decoder in 8-bit integers, on CPUs with the native engine. Faster; "
        "words may differ.  "
        "[default: none]",
    ),
]

EngineName = Annotated[
    str,
    option(
        PERFORMANCE,
        "--engine",
        metavar="ENGINE",
        help="What computes the decoders: auto, native, lean or modules (transformers' own). Same text.",
    ),
]

# Diagnostics

Quiet = Annotated[
    bool,
    option(
        DIAGNOSTICS, "--quiet/--no-quiet", "-q", help="Show errors only: no progress, no summary."
    ),
]
JsonRecords = Annotated[
    bool,
    option(
        DIAGNOSTICS,
        "--json/--no-json",
        help="Print one JSON record per recording to stdout; implies --quiet.",
    ),
]


MAX_GAMMA = 64


def parse_gamma(text: str) -> int | None:
    """Return the number of drafted tokens, None for auto. Raises UsageError."""
    if text.lower() == AUTO:
        return None
    if not text.isdecimal() or int(text) > MAX_GAMMA:
        raise UsageError(f"--gamma {text} is neither auto nor a number from 0 to {MAX_GAMMA}")
    return int(text)


UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(option: str, text: str | None) -> int | None:
    """A number of bytes: 500MB, 1.5 GiB, 20g, 1000000; None for None. Raises UsageError."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    number = (
        float(match[1]) * (1024 if match[3] else 1000) ** UNITS[match[2].lower()] if match else 0
    )
    if number < 1:
        raise UsageError(f"{option} {text}: not a size; write it as 500MB or 20GB")
    return int(number)


def refuse_links(link_speakers: bool, output: str) -> None:
    """Raises UsageError where voices would have to be kept in object storage."""
    from forescribe.asr.storage.locations import is_url

    if link_speakers and is_url(output):
        raise UsageError(
            "--link-speakers keeps voices in the output folder: name a folder of this machine with -o"
        )


def shown_url(text: str) -> str:
    """A URL without its secrets; one of an unknown kind by its scheme alone."""
    from forescribe.asr.storage.locations import Location

    try:
        return Location.parse(text).shown
    except UsageError:
        return text.partition("://")[0] + "://..."


ClusterAddress = Annotated[
    str | None,
    option(
        PERFORMANCE,
        "--cluster",
        metavar="ADDRESS",
        help="Transcribe on a Ray cluster: ray://HOST:10001, HOST:6379, or auto for one on this machine.",
    ),
]
WorkerCount = Annotated[
    int | None,
    option(
        PERFORMANCE,
        "--workers",
        metavar="N",
        min=1,
        help="Workers on the cluster.  [default: one per accelerator, or per 4 cores]",
    ),
]

DEVICES = ("auto", "cuda", "hpu", "cpu")


class Options(Protocol):
    """The options that matter here, of `TranscribeOptions`."""

    @property
    def audio(self) -> list[str]: ...
    @property
    def cluster(self) -> str | None: ...
    @property
    def workers(self) -> int | None: ...
    @property
    def link_speakers(self) -> bool: ...
    @property
    def known(self) -> bool: ...
    @property
    def device(self) -> str: ...


def check(options: Options) -> None:
    """Raises UsageError for options that a cluster cannot serve."""
    if options.cluster is None:
        if options.workers is not None:
            raise UsageError(
                "--workers needs --cluster; one machine uses all of its cores by itself"
            )
        return
    if not options.cluster:
        raise UsageError("--cluster needs an address: auto, ray://HOST:10001 or HOST:6379")
    if "-" in options.audio:
        raise UsageError("--cluster: other machines cannot read stdin; write it to a file first")
    if options.link_speakers:
        raise UsageError(
            "--link-speakers compares each recording with all before it, which --cluster transcribes at "
            "the same time; leave out one of them"
        )
    if options.known:
        raise UsageError(
            "--known uses the voices that are enrolled on this machine, which others do not have; leave out "
            "--known or --cluster"
        )
    if options.device not in DEVICES:
        raise UsageError(
            f"--device {options.device}: on a cluster Ray chooses the devices; use {', '.join(DEVICES)}"
        )
