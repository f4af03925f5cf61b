"""Flags that a command does not have: those that are gone, and those of openai/whisper, whisperX,
faster-whisper and whisper.cpp that have no meaning here. Each is refused with one line on what to use.

Other programs' names for what a command has stand in the declaration of its option. Knows how flags are
written; nothing of how a command parses its own options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forescribe.asr.errors import UsageError

GONE: Mapping[str, str] = {
    # For one version: a flag, or a command, and what to use instead.
    "--server": "record in the page of `forescribe serve`, or send audio to its /v1/realtime",
    "--rate": "send a wav file through the pipe, whose rate is in its header",
    "--max-minutes": "timeout 90m forescribe listen ends after 90 minutes",
    "--link-speakers": "enrol people with `forescribe speakers add`, and use --known",
    "--drafter": "leave it out: --draft names what drafts, or --reference-text with --draft none",
    "draft-head": "use distill RECORDINGS --draft DRAFT --cut-head --steps 0 -o FOLDER",
    "prune": "use distill RECORDINGS --layers N --steps 0 -o FOLDER",
    "--text": "distill makes drafts for Whisper alone; generate takes published drafts and heads",
    "--mix": "name the general recordings beside your own",
    "--choose": "leave it out: the block of layers that turns the hidden states least is left out",
    "--on-policy": "leave it out: it was off unless asked for",
    "--min-p": "send it to `forescribe serve`: generate has --top-p, --top-k and --temperature",
    "--presence-penalty": "use --repetition-penalty, or send it to `forescribe serve`",
    "--frequency-penalty": "use --repetition-penalty, or send it to `forescribe serve`",
    "bench": "use python -m benchmarks.transcribe, .text or .drafts in the repository",
    "--limit": "for one key: --max-requests N; a gateway in front counts what keys use",
    "status": "a run says how much is done when it begins: repeat it with --dry-run; a cluster is shown by "
    "Ray's dashboard",
}
"""Flags and commands of the version before."""

GREEDY = "leave it out: the text is the model's own greedy decoding, token for token"
PAUSES = "leave it out: windows are cut in pauses by fixed thresholds; --no-vad decodes silence too"
ALIGNMENT = "use --word-timestamps: word times come from the model's own attention"
ONE_LETTER = "options of one dash are one letter here: "

FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("--beam-size", "--best-of", "--patience", "--length-penalty"), GREEDY),
    "--temperature": f"{GREEDY}; doubtful windows are decoded again at rising temperatures, see --guards",
    "--suppress-tokens": "leave it out: the model's own list is used",
    "--hotwords": "use --initial-prompt, which names spellings to expect",
    "--translate": "use --task translate",
    "--fp16": "use --dtype float16, or --dtype float32 for False",
    "--compute-type": "use --dtype float16, bfloat16 or float32, or --quantize int8",
    "--device-index": "use --device cuda:N",
    "--model-dir": "use --model FOLDER, or set HF_HUB_CACHE",
    "--hf-token": "set HF_TOKEN in the environment: everybody who lists processes can read a command line",
    "--vad-method": "leave it out: pauses are found by silero-vad",
    **dict.fromkeys(("--vad-onset", "--vad-offset", "--vad-threshold", "--chunk-size"), PAUSES),
    **dict.fromkeys(("--align-model", "--interpolate-method", "--no-align"), ALIGNMENT),
    "--diarize-model": "use --diarizer ENGINE",
    **{f"--output-{name}": f"use -f {name}" for name in ("txt", "srt", "vtt", "json")},
    **{f"-o{name}": f"{ONE_LETTER}use -f {name}" for name in ("txt", "srt", "vtt")},
    "-oj": f"{ONE_LETTER}use -f json",
    "-of": f"{ONE_LETTER}use -o DIR",
    "-tr": f"{ONE_LETTER}use --task translate",
    "-di": f"{ONE_LETTER}use --diarize",
    "-ml": f"{ONE_LETTER}use --max-line-width N",
    "--file": "write the recording alone",
}
"""The most typed, with what to use. The parser refuses all others and names similar options."""


def checked(typed: list[str], valued: set[str], switches: Mapping[str, str | None]) -> list[str]:
    """The arguments with switches that are followed by True or False, as in openai/whisper, written bare. An
    option of the command is in `valued` if it takes a value, else in `switches` with the name that turns it
    off. Raises UsageError for flags that are gone or foreign."""
    return list(_arguments(typed[::-1], valued, switches))


def _arguments(
    left: list[str], valued: set[str], switches: Mapping[str, str | None]
) -> Iterator[str]:
    """`left` is in reverse order, so that a flag can take its value from the end."""
    while left:
        token = left.pop()
        if token == "--":
            yield from [token, *left[::-1]]
            return
        flag, equals, value = token.partition("=")
        name = flag.replace("_", "-")
        if name in switches:
            if not equals and left and left[-1].lower() in ("true", "false"):
                equals, value = "=", left.pop()
            yield _switched(flag, value, name, switches[name]) if equals else name
        elif name in valued:
            yield token
            if not equals and left:
                yield left.pop()  # whatever it looks like
        elif name.startswith("-") and (gone := _gone(name)):
            raise UsageError(f"{flag} is gone: {gone}")
        elif name in FOREIGN:
            raise UsageError(f"{flag} is not supported: {FOREIGN[name]}")
        else:
            yield token


def _gone(name: str) -> str | None:
    return GONE.get(name, GONE.get(f"--{name[5:]}" if name.startswith("--no-") else name))


def _switched(flag: str, value: str, name: str, off: str | None) -> str:
    if value.lower() == "true":
        return name
    if value.lower() != "false" or off is None:
        raise UsageError(f"{flag} is {'True or False' if off else 'a flag'}, not {value!r}")
    return off
