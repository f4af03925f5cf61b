"""Flags that people know from other programs: openai/whisper, whisperX, faster-whisper, whisper.cpp.

A command line in their dialect is put into ours before it is parsed: both spellings
(`--output_dir`, `--output-dir`), booleans bare or with True and False, other names for the same
thing. What has no meaning here is refused with the reason and the nearest thing that has one; a
flag is never accepted and then ignored. Values that ask for what is done anyway (`--beam_size 1`)
are accepted. Knows the flags, not what they do; imports nothing heavy.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forescribe.asr.batch.inputs import NAMES
from forescribe.asr.errors import UsageError

TRUE, FALSE = "true", "false"
ANY = "*"
VALUE = "{}"
"""In arguments of ours: the value as it was typed."""


@dataclass(frozen=True)
class Known:
    """The options of a command of ours: names that take a value, and switches with the name that
    switches them off (None where nothing does)."""

    valued: frozenset[str]
    switches: Mapping[str, str | None]

    def has(self, arguments: tuple[str, ...]) -> bool:
        """Whether the option that they begin with, if any, is one of these."""
        return not arguments or arguments[0] in self.valued or arguments[0] in self.switches


@dataclass(frozen=True)
class Foreign:
    """A flag of another program.

    `means` maps values (in lower case, numbers in their shortest form, `ANY` for all others) to our
    arguments; every other value is refused because of `why`, with `instead` as the way out. A
    `switch` may stand without a value, which means true. A `secret` value is in no message.
    """

    why: str = ""
    instead: str = ""
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    switch: bool = False
    secret: bool = False

    def arguments(self, typed: str, value: str) -> tuple[str, ...]:
        """Ours for this value. Raises UsageError that names the flag as it was typed."""
        found = self.means.get(_plain(value), self.means.get(ANY))
        if found is not None:
            return tuple(value if part == VALUE else part for part in found)
        shown = f"{typed} {value}" if self.means and not self.secret else typed
        raise UsageError(f"{shown} is not supported: {self.why}; {self.instead}")


def _same(option: str) -> Foreign:
    return Foreign(means={ANY: (option, VALUE)})


def _done(why: str, instead: str, *values: str, switch: bool = False) -> Foreign:
    """These values ask for what is done anyway."""
    return Foreign(why, instead, dict.fromkeys(values, ()), switch)


def _not(why: str, instead: str, *, switch: bool = False) -> Foreign:
    return Foreign(why, instead, {FALSE: ()} if switch else {}, switch)


GREEDY = "the text is the model's own greedy decoding, token for token"
RANKING = "nothing is ranked, as decoding is greedy"
OWN_WORDS = "it would change the model's own words"
ALIGNMENT = "word times come from the model's own attention, without another model"
PAUSES = "windows are cut by fixed thresholds"
LEAVE = "leave it out"

FOREIGN: Mapping[str, Foreign] = {
    # decoding
    "--beam-size": _done(GREEDY, "leave it out, or give 1", "1", "none"),
    "--best-of": _done(GREEDY, "leave it out, or give 1", "1", "none"),
    "--patience": _done(RANKING, LEAVE, "1", "none"),
    "--length-penalty": _done(RANKING, LEAVE, "1", "none"),
    "--temperature": _done(
        GREEDY, "doubtful windows are decoded again at rising temperatures, see --guards", "0"
    ),
    "--repetition-penalty": _done(OWN_WORDS, "repetitions are decoded again, see --guards", "1"),
    "--no-repeat-ngram-size": _done(OWN_WORDS, "repetitions are decoded again, see --guards", "0"),
    "--suppress-tokens": _done("the model's own list is used", LEAVE, "-1"),
    "--suppress-blank": _done("the model's own list is used", LEAVE, TRUE, switch=True),
    "--suppress-numerals": _not(OWN_WORDS, LEAVE, switch=True),
    "--suppress-regex": _not(OWN_WORDS, LEAVE),
    "--grammar": _not(OWN_WORDS, "--initial-prompt names spellings to expect"),
    "--prefix": _not(OWN_WORDS, "--initial-prompt names spellings to expect"),
    "--hotwords": _not(
        "there is no list of favoured words", "--initial-prompt names spellings to expect"
    ),
    "--carry-initial-prompt": Foreign(
        "the initial prompt stands before every window, with --long-form sequential the first",
        LEAVE,
        switch=True,
    ),
    "--prompt": _same("--initial-prompt"),
    "--translate": Foreign(
        means={TRUE: ("--task", "translate"), FALSE: ()},
        why="it is True or False",
        instead="--task translate",
        switch=True,
    ),
    # guards
    "--log-prob-threshold": _same("--logprob-threshold"),
    "--hallucination-silence-threshold": _done(
        "text over silence is judged by the window", "it is dropped, see --guards", "none"
    ),
    "--no-fallback": _not(
        "the guards decode a doubtful window again",
        "--temperature-increment-on-fallback None",
        switch=True,
    ),
    # the model and the machine
    "--model-name": _same("--model"),
    "--whisper-model": _same("--model"),
    "--model-dir": _not(
        "weights lie in the Hugging Face cache", "give a folder to --model, or set HF_HUB_CACHE"
    ),
    "--model-directory": _not("it has another name here", "give the folder to --model"),
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
    "--device-index": _done("a device is one name here", "--device cuda:N", "0"),
    "--device-id": _done("a device is one name here", "--device cuda:N", "0"),
    "--fp16": Foreign(
        "it is True or False",
        "--dtype float16",
        {TRUE: ("--dtype", "float16"), FALSE: ("--dtype", "float32")},
        switch=True,
    ),
    "--compute-type": Foreign(
        "weights are not quantised",
        "--dtype float16 or --dtype bfloat16 are the smallest",
        {
            **{name: ("--dtype", name) for name in ("float16", "bfloat16", "float32", "auto")},
            "default": ("--dtype", "auto"),
        },
    ),
    "--flash": _not("attention is chosen by the device", LEAVE, switch=True),
    "--batched": _done("it always is", "--batch-size 1", TRUE, switch=True),
    "--chunk-size": _done("a window is what the model hears at once", LEAVE, "30"),
    "--chunk-length": _done("a window is what the model hears at once", LEAVE, "30"),
    "--multilingual": _done(
        "without --language every window's is detected", "--language LANG", TRUE, switch=True
    ),
    "--lang": _same("--language"),
    # voice activity
    "--vad-filter": Foreign(
        "it is True or False", "--vad", {TRUE: ("--vad",), FALSE: ("--no-vad",)}, switch=True
    ),
    "--vad-method": _done("pauses are found by silero-vad", LEAVE, "silero"),
    "--vad-model": _not("pauses are found by silero-vad", LEAVE),
    **{
        f"--vad-{name}": _not(PAUSES, "--vad or --no-vad")
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
    "--prepend-punctuations": _not("Whisper's own lists are used", LEAVE),
    "--append-punctuations": _not("Whisper's own lists are used", LEAVE),
    "--segment-resolution": _not(
        "segments are the model's own", "--max-line-width and --max-line-count shape subtitles"
    ),
    "--max-len": _not("it has another name here", "--max-line-width N"),
    "--split-on-word": _done("lines always break at words", LEAVE, TRUE, switch=True),
    "--clip-timestamps": _done("recordings are decoded whole", "cut the file first", "0"),
    "--align-model": _not(ALIGNMENT, "--word-timestamps"),
    "--interpolate-method": _not(ALIGNMENT, "--word-timestamps"),
    "--return-char-alignments": _not("a word is the smallest part", LEAVE, switch=True),
    "--dtw": _not(ALIGNMENT, "--word-timestamps"),
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
    "--no-stem": _done("nothing is separated from the music", LEAVE, TRUE, switch=True),
    **{
        f"--{name}": _not("engines have names", "--diarizer NAME")
        for name in ("diarize-model", "diarization-model")
    },
    "--speaker-name": _not("voices are enrolled first", "`forescribe speakers add NAME CLIP`"),
    "--speaker-embeddings": _not("voices stay on this machine", LEAVE, switch=True),
    # files and messages
    "--no-resume": Foreign(
        "it is True or False", "--overwrite", {TRUE: ("--overwrite",), FALSE: ()}, switch=True
    ),
    "--skip-existing": Foreign(
        "it is True or False", "--resume", {TRUE: ("--resume",), FALSE: ("--overwrite",)}, switch=True
    ),
    "--input-list": _not(
        "a list is named like a recording", "a .jsonl has `audio_filepath` in each line"
    ),
    "--file": _not("recordings need no flag", "write the file alone"),
    "--file-name": _not("recordings need no flag", "write the file alone"),
    "--transcript-path": _not("a result's name is its recording's", "-o DIR -f json"),
    "--output-file": _not("a result's name is its recording's", "-o DIR -f FORMAT"),
    **{
        f"--output-{name}": Foreign(
            "formats are one list", f"-f {name}", {FALSE: ()}, switch=True
        )
        for name in ("txt", "srt", "vtt", "json")
    },
    "--output-json-full": _not("formats are one list", "-f json", switch=True),
    "--output-csv": _not("the table has tabs", "-f tsv", switch=True),
    "--output-lrc": _not("lyrics are no format here", "-f srt", switch=True),
    "--pretty-json": _not("JSON is one line", "`python -m json.tool` indents it", switch=True),
    "--print-progress": _done("a terminal always shows it", "--quiet", TRUE, switch=True),
    "--log-level": _not("there are two of them", "--verbose or --quiet"),
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


def translate(typed: list[str], known: Known) -> list[str]:
    """The same request in our own options. Raises UsageError for what has no meaning here."""
    return list(_translated(typed, known))


def _translated(typed: list[str], known: Known) -> Iterator[str]:
    waiting = typed[::-1]  # the next one is the last, so that a flag can take its value

    def value(text: str | None) -> str:
        if text is not None:
            return text
        if not waiting:
            raise UsageError(f"{token} needs a value")
        return waiting.pop()

    def truth(text: str | None) -> str:
        """`--x`, `--x True`, `--x=True`; a word behind it that is neither is a recording."""
        if text is None and waiting and waiting[-1].lower() in (TRUE, FALSE):
            text = waiting.pop()
        return TRUE if text is None else text.lower()

    while waiting:
        token = waiting.pop()
        if token == "--":
            yield from [token, *waiting[::-1]]
            return
        if not token.startswith("--"):
            if token in SHORT:
                raise UsageError(f"{token} is not supported: options of one dash are one letter "
                                 f"here; {SHORT[token]}")  # fmt: skip
            yield token
            if token in known.valued and waiting:  # whatever it looks like
                yield _checked(token, waiting.pop())
            continue
        flag, equals, text = token.partition("=")
        name, given = flag.replace("_", "-"), text if equals else None
        if name in known.switches:
            yield _switched(flag, name, truth(given), known)
        elif name in known.valued:
            if given is not None:
                _checked(flag, given)
            yield token
            if given is None and waiting:
                yield _checked(flag, waiting.pop())
        elif name in FOREIGN:
            foreign = FOREIGN[name]
            ours = foreign.arguments(flag, truth(given) if foreign.switch else value(given))
            # What this command does not have is refused by the parser, under the name that was typed.
            yield from ours if known.has(ours) else (flag,)
        else:
            yield token  # a recording cannot begin with dashes: the parser says what is near


def _checked(flag: str, value: str) -> str:
    """The value, unless whisper.cpp's `-f` was meant, which names a recording."""
    if flag.replace("_", "-") in FORMATS and os.path.splitext(value)[1][1:].lower() in NAMES:
        raise UsageError(
            f"{flag} {value}: {flag} names formats of results here (txt, srt, json, ...); a "
            f"recording needs no flag, as in `forescribe {shlex.quote(value)} {flag} srt`"
        )
    return value


def _switched(flag: str, name: str, truth: str, known: Known) -> str:
    if truth == TRUE:
        return name
    off = known.switches[name]
    if truth != FALSE or off is None:
        raise UsageError(f"{flag} is {'True or False' if off else 'a flag'}, not {truth!r}")
    return off


def _plain(value: str) -> str:
    """1, 1.0 and 1e0 are one number."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.strip().lower()


__all__ = ["FOREIGN", "Foreign", "Known", "translate"]
