"""Flags that people know from other programs: openai/whisper, whisperX, faster-whisper, whisper.cpp.

A command line with such flags is translated before it is parsed: both spellings (`--output_dir`,
`--output-dir`), switches bare or with True and False, other names for the same thing. A flag
without a meaning here is refused with the reason and the nearest alternative; no flag is accepted
and then ignored. Values that ask for what is done anyway (`--beam_size 1`) are accepted. Knows how
flags are written and what they mean here; nothing of how a command parses its own options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forescribe.asr.errors import UsageError
from forescribe.asr.records.sources import NAMES

TRUE, FALSE = "true", "false"
ANY = "*"
VALUE = "{}"
"""In our arguments, stands for the value as typed."""


@dataclass(frozen=True)
class KnownOptions:
    """The options of a command: names that take a value, and switches with the name that turns them off
    (None without one)."""

    valued: frozenset[str]
    switches: Mapping[str, str | None]

    def has(self, arguments: tuple[str, ...]) -> bool:
        """Whether the option at the front of these arguments, if any, is one of the command's."""
        return not arguments or arguments[0] in self.valued or arguments[0] in self.switches


def translate(typed: list[str], known: KnownOptions) -> list[str]:
    """Return the same request in our own options. Raises UsageError for flags without a meaning
    here."""
    return list(_Translation(typed, known).arguments())


@dataclass(frozen=True)
class Foreign:
    """A flag of another program.

    `means` maps values (in lower case, numbers in their shortest form, `ANY` for all others) to our
    arguments; every other value is refused with the reason `why` and the alternative `instead`. A
    `switch` needs no value and is then true. A `secret` value appears in no message.
    """

    why: str = ""
    instead: str = ""
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    switch: bool = False
    secret: bool = False

    def arguments(self, typed: str, value: str) -> tuple[str, ...]:
        """Our arguments for this value. Raises UsageError that names the flag as typed."""
        ours = self.means.get(_plain(value), self.means.get(ANY))
        if ours is not None:
            return tuple(value if part == VALUE else part for part in ours)
        shown = f"{typed} {value}" if self.means and not self.secret else typed
        raise UsageError(f"{shown} is not supported: {self.why}; {self.instead}")


def _plain(value: str) -> str:
    """The shortest form of a value: 1, 1.0 and 1e0 are one number."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.strip().lower()


def _renamed(option: str) -> Foreign:
    return Foreign(means={ANY: (option, VALUE)})


def _default(why: str, instead: str, *values: str, switch: bool = False) -> Foreign:
    """A flag whose `values` ask for what is done anyway; others are refused."""
    return Foreign(why, instead, dict.fromkeys(values, ()), switch)


def _refused(why: str, instead: str, *, switch: bool = False) -> Foreign:
    """A flag that is refused, unless it is a switch that is False."""
    return Foreign(why, instead, {FALSE: ()} if switch else {}, switch)


GREEDY = "the text is the model's own greedy decoding, token for token"
RANKING = "nothing is ranked, as decoding is greedy"
OWN_WORDS = "it would change the model's own words"
ALIGNMENT = "word times come from the model's own attention, without another model"
PAUSES = "windows are cut by fixed thresholds"
LEAVE = "leave it out"

FOREIGN: Mapping[str, Foreign] = {
    # decoding
    "--beam-size": _default(GREEDY, "leave it out, or give 1", "1", "none"),
    "--best-of": _default(GREEDY, "leave it out, or give 1", "1", "none"),
    "--patience": _default(RANKING, LEAVE, "1", "none"),
    "--length-penalty": _default(RANKING, LEAVE, "1", "none"),
    "--temperature": _default(
        GREEDY, "doubtful windows are decoded again at rising temperatures, see --guards", "0"
    ),
    "--repetition-penalty": _default(OWN_WORDS, "repetitions are decoded again, see --guards", "1"),
    "--no-repeat-ngram-size": _default(OWN_WORDS, "repetitions are decoded again, see --guards", "0"),
    "--suppress-tokens": _default("the model's own list is used", LEAVE, "-1"),
    "--suppress-blank": _default("the model's own list is used", LEAVE, TRUE, switch=True),
    "--suppress-numerals": _refused(OWN_WORDS, LEAVE, switch=True),
    "--suppress-regex": _refused(OWN_WORDS, LEAVE),
    "--grammar": _refused(OWN_WORDS, "--initial-prompt names spellings to expect"),
    "--prefix": _refused(OWN_WORDS, "--initial-prompt names spellings to expect"),
    "--hotwords": _refused(
        "there is no list of favoured words", "--initial-prompt names spellings to expect"
    ),
    "--carry-initial-prompt": Foreign(
        "the initial prompt stands before every window, with --long-form sequential the first",
        LEAVE,
        switch=True,
    ),
    "--prompt": _renamed("--initial-prompt"),
    "--translate": Foreign(
        means={TRUE: ("--task", "translate"), FALSE: ()},
        why="it is True or False",
        instead="--task translate",
        switch=True,
    ),
    # guards
    "--log-prob-threshold": _renamed("--logprob-threshold"),
    "--hallucination-silence-threshold": _default(
        "text over silence is judged by the window", "it is dropped, see --guards", "none"
    ),
    "--no-fallback": _refused(
        "the guards decode a doubtful window again",
        "--temperature-increment-on-fallback None",
        switch=True,
    ),
    # the model and the machine
    "--model-name": _renamed("--model"),
    "--whisper-model": _renamed("--model"),
    "--model-dir": _refused(
        "weights lie in the Hugging Face cache", "give a folder to --model, or set HF_HUB_CACHE"
    ),
    "--model-directory": _refused("it has another name here", "give the folder to --model"),
    "--model-cache-only": Foreign(
        "it is True or False",
        "--local-files-only",
        {TRUE: ("--local-files-only",), FALSE: ("--no-local-files-only",)},
        switch=True,
    ),
    "--hf-token": Foreign(
        "on a command line everybody who lists processes can read it",
        "set HF_TOKEN in the environment",
        secret=True,
    ),
    "--device-index": _default("a device is one name here", "--device cuda:N", "0"),
    "--device-id": _default("a device is one name here", "--device cuda:N", "0"),
    "--fp16": Foreign(
        "it is True or False",
        "--dtype float16",
        {TRUE: ("--dtype", "float16"), FALSE: ("--dtype", "float32")},
        switch=True,
    ),
    "--compute-type": Foreign(
        "it names one of another program's formats",
        "take --dtype, or --quantize int8",
        {
            **{name: ("--quantize", "int8") for name in ("int8", "int8_float32")},
            **{name: ("--dtype", name) for name in ("float16", "bfloat16", "float32", "auto")},
            "default": ("--dtype", "auto"),
        },
    ),
    "--flash": _refused("attention is chosen by the device", LEAVE, switch=True),
    "--batched": _default("it always is", "--batch-size 1", TRUE, switch=True),
    "--chunk-size": _default("a window is what the model hears at once", LEAVE, "30"),
    "--chunk-length": _default("a window is what the model hears at once", LEAVE, "30"),
    "--multilingual": _default(
        "without --language every window's is detected", "--language LANG", TRUE, switch=True
    ),
    "--lang": _renamed("--language"),
    # voice activity
    "--vad-filter": Foreign(
        "it is True or False", "--vad", {TRUE: ("--vad",), FALSE: ("--no-vad",)}, switch=True
    ),
    "--vad-method": _default("pauses are found by silero-vad", LEAVE, "silero"),
    "--vad-model": _refused("pauses are found by silero-vad", LEAVE),
    **{
        f"--vad-{name}": _refused(PAUSES, "--vad or --no-vad")
        for name in (
            "onset",
            "offset",
            "threshold",
            "min-speech-duration-ms",
            "max-speech-duration-s",
            "min-silence-duration-ms",
            "speech-pad-ms",
        )
    },
    # words and subtitles
    "--prepend-punctuations": _refused("Whisper's own lists are used", LEAVE),
    "--append-punctuations": _refused("Whisper's own lists are used", LEAVE),
    "--segment-resolution": _refused(
        "segments are the model's own", "--max-line-width and --max-line-count shape subtitles"
    ),
    "--max-len": _refused("it has another name here", "--max-line-width N"),
    "--split-on-word": _default("lines always break at words", LEAVE, TRUE, switch=True),
    "--clip-timestamps": _default("recordings are decoded whole", "cut the file first", "0"),
    "--align-model": _refused(ALIGNMENT, "--word-timestamps"),
    "--interpolate-method": _refused(ALIGNMENT, "--word-timestamps"),
    "--return-char-alignments": _refused("a word is the smallest part", LEAVE, switch=True),
    "--dtw": _refused(ALIGNMENT, "--word-timestamps"),
    "--no-align": Foreign(
        "it is True or False",
        "--no-word-timestamps",
        {TRUE: ("--no-word-timestamps",), FALSE: ("--word-timestamps",)},
        switch=True,
    ),
    "--timestamp": Foreign(
        "it is chunk or word",
        "--word-timestamps",
        {"chunk": ("--timestamps",), "word": ("--word-timestamps",)},
    ),
    # speakers
    "--no-stem": _default("nothing is separated from the music", LEAVE, TRUE, switch=True),
    **{
        f"--{name}": _refused("engines have names", "--diarizer NAME")
        for name in ("diarize-model", "diarization-model")
    },
    "--speaker-name": _refused("voices are enrolled first", "`forescribe speakers add NAME CLIP`"),
    "--speaker-embeddings": _refused("voices stay on this machine", LEAVE, switch=True),
    # files and messages
    "--no-resume": Foreign(
        "it is True or False", "--overwrite", {TRUE: ("--overwrite",), FALSE: ()}, switch=True
    ),
    "--skip-existing": Foreign(
        "it is True or False", "--resume", {TRUE: ("--resume",), FALSE: ("--overwrite",)}, switch=True
    ),
    "--input-list": _refused(
        "a list is named like a recording", "a .jsonl has `audio_filepath` in each line"
    ),
    "--file": _refused("recordings need no flag", "write the file alone"),
    "--file-name": _refused("recordings need no flag", "write the file alone"),
    "--transcript-path": _refused("a result's name is its recording's", "-o DIR -f json"),
    "--output-file": _refused("a result's name is its recording's", "-o DIR -f FORMAT"),
    **{
        f"--output-{name}": Foreign(
            "formats are one list", f"-f {name}", {FALSE: ()}, switch=True
        )
        for name in ("txt", "srt", "vtt", "json")
    },
    "--output-json-full": _refused("formats are one list", "-f json", switch=True),
    "--output-csv": _refused("the table has tabs", "-f tsv", switch=True),
    "--output-lrc": _refused("lyrics are no format here", "-f srt", switch=True),
    "--pretty-json": _refused("JSON is one line", "`python -m json.tool` indents it", switch=True),
    "--print-progress": _default("a terminal always shows it", "--quiet", TRUE, switch=True),
    "--log-level": _refused("there are two of them", "--verbose or --quiet"),
}  # fmt: skip

FORMATS = frozenset({"-f", "--output-format"})

SHORT: Mapping[str, str] = {
    # whisper.cpp writes whole words behind one dash; `-osrt` would name the output folder "srt".
    **{f"-o{name}": f"-f {name}" for name in ("txt", "srt", "vtt")},
    "-oj": "-f json",
    "-ojf": "-f json",
    "-ocsv": "-f tsv",
    "-olrc": "-f srt",
    "-of": "-o DIR",
    "-a": "write the file alone",
    "-t": "--threads N",
    "-tr": "--task translate",
    "-bs": "leave it out: decoding is greedy",
    "-bo": "leave it out: decoding is greedy",
    "-ml": "--max-line-width N",
    "-nt": "--no-timestamps",
    "-nf": "--temperature-increment-on-fallback None",
    "-tp": "leave it out: decoding is greedy",
    "-tpi": "--temperature-increment-on-fallback X",
    "-et": "--compression-ratio-threshold X",
    "-lpt": "--logprob-threshold X",
    "-nth": "--no-speech-threshold X",
    "-dl": "leave --language out, and the language is detected",
    "-di": "--diarize",
    "-dtw": "--word-timestamps",
    "-sow": "leave it out: lines always break at words",
    "-ot": "cut the file first",
    "-np": "--quiet",
    "-pp": "leave it out: a terminal always shows it",
    "-ps": "leave it out",
    "-pc": "leave it out",
    "-ng": "--device cpu",
    "-fa": "leave it out: attention is chosen by the device",
    "-oved": "--device NAME",
}


class _Translation:
    """The arguments that are left, in reverse order, so that a flag can take its value from the end."""

    def __init__(self, typed: list[str], known: KnownOptions) -> None:
        self.left, self.known = typed[::-1], known

    def arguments(self) -> Iterator[str]:
        while self.left:
            token = self.left.pop()
            if token == "--":
                yield from [token, *self.left[::-1]]
                return
            if token.startswith("--"):
                yield from self._long(token)
            else:
                yield from self._short(token)

    def _short(self, token: str) -> Iterator[str]:
        """An option with one dash, or a recording."""
        if token in SHORT:
            raise UsageError(
                f"{token} is not supported: options of one dash are one letter here; {SHORT[token]}"
            )
        yield token
        if token in self.known.valued and self.left:  # the next argument is its value in any case
            yield _checked(token, self.left.pop())

    def _long(self, token: str) -> Iterator[str]:
        flag, equals, text = token.partition("=")
        name, value = flag.replace("_", "-"), text if equals else None
        if name in self.known.switches:
            yield _switched(flag, name, self._truth(value), self.known)
        elif name in self.known.valued:
            if value is not None:
                _checked(flag, value)
            yield token
            if value is None and self.left:
                yield _checked(flag, self.left.pop())
        elif name in FOREIGN:
            foreign = FOREIGN[name]
            given = self._truth(value) if foreign.switch else self._value(flag, value)
            ours = foreign.arguments(flag, given)
            # The parser refuses an option that this command does not have, under the name as typed.
            yield from ours if self.known.has(ours) else (flag,)
        else:
            yield token  # the parser refuses it and names similar options

    def _value(self, flag: str, value: str | None) -> str:
        if value is not None:
            return value
        if not self.left:
            raise UsageError(f"{flag} needs a value")
        return self.left.pop()

    def _truth(self, value: str | None) -> str:
        """`--x`, `--x True` or `--x=True`; a following word that is neither True nor False is a
        recording."""
        if value is None and self.left and self.left[-1].lower() in (TRUE, FALSE):
            value = self.left.pop()
        return TRUE if value is None else value.lower()


def _checked(flag: str, value: str) -> str:
    """The value, unless it names a recording, as that of whisper.cpp's `-f` does."""
    if flag.replace("_", "-") in FORMATS and os.path.splitext(value)[1][1:].lower() in NAMES:
        raise UsageError(
            f"{flag} {value}: {flag} names formats of results here (txt, srt, json, ...); a "
            f"recording needs no flag, as in `forescribe {shlex.quote(value)} {flag} srt`"
        )
    return value


def _switched(flag: str, name: str, truth: str, known: KnownOptions) -> str:
    if truth == TRUE:
        return name
    off = known.switches[name]
    if truth != FALSE or off is None:
        raise UsageError(f"{flag} is {'True or False' if off else 'a flag'}, not {truth!r}")
    return off
