"""What is asked of a call.

`Options` are frozen and checked once. Each is declared once, with the names that it has on the command line,
in forms of the service and in a transcript's settings (`declared.py`), and read from there by all of them.
Import is light.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from forescribe.speculative.errors import RequestError
from forescribe.speculative.requests import (
    MOST_BEAMS,
    MOST_PATIENCE,
    Beams,
    check_text,
    check_whole,
)

from ..errors import UsageError
from ..model.presets import BEAMS, BeamSize
from ..model.tokens import TASKS, Task
from ..words.replacements import Replacements
from ..words.terms import LONGEST_TERM, MOST_TERMS, letters, lines_of, read_terms, says
from .declared import AUTO, Declared, Flag, FormField, Given, option, whole_or_auto
from .guards import Guards as Guards

if TYPE_CHECKING:
    from ..formats.transcript_parts import Json
    from ..segment.windows import WindowOptions
    from ..words.redaction import Redactor


MAX_HINT = 1_000_000
"""Characters of a hint in a form: more than a day of speech."""

MAX_PROMPT = 100_000
"""Characters of a prompt, of which a model reads the last 223 tokens."""

MOST_REPLACED = 20_000
"""Characters of replacements: compiling 400,000 held the event loop for 47 s."""

MAX_LISTED, MAX_NAME = 1000, 1000
"""Entries of a list, and characters of one."""


HOTWORDS = FormField("hotwords", str, max_length=MAX_PROMPT)
"""Of faster-whisper: terms, or where it is a sentence a prompt."""


def _prompt(asked: Given) -> str | None:
    said = None if _hot_terms(asked["hotwords"]) else asked["hotwords"]
    return ", ".join(filter(None, (asked["prompt"], asked["initial_prompt"], said))) or None


def _hot_terms(hotwords: str | None) -> tuple[str, ...]:
    """A word, or terms with commas between them. Another text is for the prompt, as in faster-whisper."""
    terms = tuple(part for part in (hotwords or "").split(",") if letters(part))
    listed = len(terms) > 1 or len(terms) == 1 == len(terms[0].split())
    return terms if listed and max(map(len, terms)) <= LONGEST_TERM else ()


def _hint(typed: Given) -> str | None:
    if typed["reference_text"] is None:
        return None
    from ..formats.files import read_reference_text

    return read_reference_text(typed["reference_text"])


def _lines(name: str, check: Callable[[tuple[str, ...]], object], typed: Given) -> tuple[str, ...]:
    return () if typed[name] is None else lines_of(f"--{name}", typed[name], check)


def _asked_terms(asked: Given) -> tuple[str, ...]:
    more = filter(letters, asked.get("keywords", ()))
    lines = (*asked["terms"], *asked["keyterms"], *more, *_hot_terms(asked["hotwords"]))
    if lines:
        read_terms(lines)
    return lines


def _asked_replacements(asked: Given) -> tuple[str, ...]:
    """No expressions and no long lists, which take the time of all."""
    lines: tuple[str, ...] = asked["replacements"]
    if any(line.lstrip().startswith("/") for line in lines):
        raise UsageError("/expressions/ are for the command alone: give words, as 'heard => meant'")
    if (count := sum(map(len, lines))) > MOST_REPLACED:
        raise UsageError(f"{count:,} characters; the service takes {MOST_REPLACED:,}: keep fewer")
    Replacements.of(lines)
    return lines


def _kinds(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Kinds of personal data, each of which can be found here."""
    if kinds := tuple(kind for entry in entries for kind in entry.split(",")):
        _redactor(kinds)
    return kinds


def _redactor(kinds: tuple[str, ...]) -> Redactor:
    from ..words.redaction import Redactor

    return Redactor(kinds)


def _windows() -> WindowOptions:
    from ..segment.windows import WindowOptions

    return WindowOptions()


def _beams(typed: Given) -> BeamSize | None:
    size = typed["beam_size"]
    return None if size is None else whole_or_auto("--beam-size", size, 1, MOST_BEAMS) or AUTO


def _of_beams(name: str, default: float | None, typed: Given) -> float | None:
    """What means nothing without beams."""
    value: float | None = typed[name]
    if value is not None and _beams(typed) == 1:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{flag} is for beams: add --beam-size 5, or --beam-size auto")
    return default if value is None else value


def _typed_guards(typed: Given) -> Guards | None:
    given: dict[str, Any] = {
        own: _number(name, typed[name])
        for own in ("compression_ratio", "logprob", "no_speech")
        if typed[name := f"{own}_threshold"] is not None
    }
    if (increment := typed["temperature_increment_on_fallback"]) is not None:
        given["temperatures"] = _temperatures(increment)
    if given and not typed["guards"]:
        raise UsageError("--no-guards and a guard's threshold contradict each other")
    return Guards(**given) if typed["guards"] else None


def _number(name: str, text: str) -> float | None:
    """A number, or None for the word None, which turns a guard off."""
    if text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--{name.replace('_', '-')} {text} is neither a number nor None")
    return number


def _temperatures(text: str) -> tuple[float, ...]:
    """From 0 to 1 in steps, as in openai/whisper."""
    step = _number("temperature_increment_on_fallback", text)
    if step is None:
        return (0.0,)
    if step < 0.01:
        raise UsageError(
            f"--temperature-increment-on-fallback {text}: give 0.01 or more, or None for one attempt"
        )
    return tuple(round(n * step, 6) for n in range(int((1 + 1e-6) / step) + 1))


def _asked_guards(asked: Given) -> Guards:
    """Temperature 0 is raised automatically for doubtful windows, as OpenAI's contract says; any other
    temperature is the only one that is tried."""
    return Guards(
        asked["compression_ratio_threshold"],
        asked["log_prob_threshold"],
        asked["no_speech_threshold"],
        (asked["temperature"],) if asked["temperature"] else Guards.temperatures,
    )


@dataclass(frozen=True)
class Options:
    """The options of a call.

    `language` None or "auto" detects the language, "de,en" among these. `gamma` is the number of drafted
    tokens per round; None takes the transcriber's own, which is also the maximum. `initial_prompt` is text
    before every window: names and spellings to expect. `hint` is text that is probably spoken, such as a
    script or an earlier transcript of the whole recording: drafts are copied from it, and no word depends
    on it. `terms` are words and phrases to write where the model agrees that they were spoken, as lines of
    `asr.words.terms`; `replacements` are words to write otherwise, as lines of `asr.words.replacements`.
    `beam_size` is 1 for the most probable token, or the number of beams of every window; "auto" searches with
    `BEAMS` where a window is doubtful without; None is the transcriber's own, by default the model's
    (`asr.model.presets.beams_of`). `patience` and `length_penalty` are of `Beams`.
    Raises UsageError for invalid values.
    """

    language: str | None = option(
        None,
        Flag(
            "--language --lang -l LANG,...", "Spoken language, or several.", shown=AUTO, live=True
        ),
        FormField("language", str, translations=False, live=True),
    )
    task: Task = option(
        "transcribe",
        Flag(
            "--task TASK",
            "transcribe, or translate (into English).",
            default="transcribe",
            live=True,
        ),
        FormField("task", Task, "transcribe", translations=False),
        told=True,
    )
    timestamps: bool = option(
        True,
        Flag(
            "--timestamps/--no-timestamps",
            "Divide the text into timed segments.",
            bool,
            True,
            "Output",
        ),
        told=True,
    )
    initial_prompt: str | None = option(
        None,
        Flag(
            "--initial-prompt --prompt TEXT", "Text with names and spellings to expect.", live=True
        ),
        FormField("prompt", str, live=True, max_length=MAX_PROMPT),
        FormField("initial_prompt", str, max_length=MAX_PROMPT),
        HOTWORDS,
        asked=_prompt,
        told=True,
    )
    hint: str | None = option(
        None,
        Flag(
            "--reference-text FILE",
            "Script or transcript to copy drafts from; same words.",
            changes=False,
        ),
        FormField("hint", str, max_length=MAX_HINT, translations=False),
        typed=_hint,
    )
    terms: tuple[str, ...] = option(
        (),
        Flag(
            "--terms FILE",
            "Names and terms, one a line: written so where they are heard.",
            live=True,
        ),
        FormField("terms", str, entries=MOST_TERMS, lines=True, live=True, max_length=MAX_NAME),
        FormField("keyterms", str, entries=MOST_TERMS, lines=True, max_length=MAX_NAME),
        FormField(
            "keywords", str, entries=MAX_LISTED, translations=False, live=True, max_length=MAX_NAME
        ),
        HOTWORDS,
        typed=partial(_lines, "terms", read_terms),
        asked=_asked_terms,
        told=lambda options: len(read_terms(options.terms)) if options.terms else 0,
        kept=lambda lines: lines or None,
    )
    replacements: tuple[str, ...] = option(
        (),
        Flag("--replace FILE", "Corrections, one a line: `heard => meant`.", live=True),
        FormField(
            "replacements", str, entries=MOST_TERMS, lines=True, live=True, max_length=MAX_NAME
        ),
        typed=partial(_lines, "replace", Replacements.of),
        asked=_asked_replacements,
        told=lambda options: sum(map(says, options.replacements)),
        kept=lambda lines: lines or None,
    )
    redact: tuple[str, ...] = option(  # kinds of personal data in place of which marks are written
        (),
        Flag("--redact KIND,...", "Marks in place of personal data: all, or kinds of it."),
        FormField("redact", str, entries=MAX_LISTED, max_length=MAX_NAME),
        typed=lambda typed: _kinds(() if typed["redact"] is None else (typed["redact"],)),
        asked=lambda asked: _kinds(asked["redact"]),
        told=lambda options: list(options.redact),
        served=lambda kinds, language: _redactor(kinds).check(language) if kinds else None,
    )
    gamma: int | None = option(None)
    vad: bool = option(
        True,
        Flag("--vad/--no-vad --vad-filter", "Skip long silence.", bool, True),
        FormField("vad_filter", bool, True),
        told=True,
    )
    windows: WindowOptions = option(
        default_factory=_windows,
        told=lambda options: asdict(options.windows) if options.vad else None,
    )
    beam_size: BeamSize | None = option(
        None,
        Flag(
            "--beam-size N",
            "Beams of a search, as openai/whisper's; 1: no search, with drafts; auto: 5 for windows of "
            "doubtful words.",
            shown="5 up to small, 1 for larger models",
            live=True,
        ),
        FormField("beam_size", int, words=(AUTO,), live=True, ge=1, le=MOST_BEAMS),
        typed=_beams,
        told=True,
        kept=lambda size: {1: None, AUTO: "doubtful"}.get(size, size),
    )
    patience: float = option(
        1.0,
        Flag("--patience P", "Beams end with N x P texts.", float, shown="1.0"),
        FormField("patience", float, 1.0, gt=0, le=MOST_PATIENCE),
        typed=partial(_of_beams, "patience", 1.0),
        # Of one beam this means nothing in a form, as in faster-whisper.
        asked=lambda asked: 1.0 if asked["beam_size"] == 1 else asked["patience"],
        told=True,
    )
    length_penalty: float | None = option(
        None,
        Flag(
            "--length-penalty ALPHA",
            "Rank beams by length to this power.",
            float,
            shown="their mean",
        ),
        FormField("length_penalty", float, 1.0, ge=0, le=1),
        typed=partial(_of_beams, "length_penalty", None),
        # A penalty of 1 is the mean, as in faster-whisper.
        asked=lambda asked: (
            None if 1 in (asked["beam_size"], asked["length_penalty"]) else asked["length_penalty"]
        ),
        told=True,
    )
    guards: Guards | None = option(  # decode doubtful windows again; None keeps every answer
        None,
        Flag(
            "--guards/--no-guards",
            "Decode repetitive or improbable windows again at rising temperatures, and drop text over "
            "silence.",
            bool,
            True,
        ),
        Flag(
            "--compression-ratio-threshold RATIO",
            "Text that repeats more is retried; None: off.",
            shown="2.4",
        ),
        Flag(
            "--logprob-threshold --log-prob-threshold --logprob-thold LOGPROB",
            "Less probable text is retried; None: off.",
            shown="-1.0",
        ),
        Flag(
            "--no-speech-threshold --no-speech-thold PROB",
            "Windows above it are silent; None: off.",
            shown="0.6",
        ),
        Flag(
            "--temperature-increment-on-fallback --temperature-inc STEP",
            "Increase between attempts; None: one attempt.",
            shown="0.2",
        ),
        FormField("temperature", float, 0.0, ge=0, le=1),
        FormField("compression_ratio_threshold", float, 2.4, gt=0),
        FormField("log_prob_threshold", float, -1.0, le=0),
        FormField("no_speech_threshold", float, 0.6, ge=0, le=1),
        typed=_typed_guards,
        asked=_asked_guards,
        told=lambda options: (
            options.guards
            and asdict(options.guards) | {"temperatures": list(options.guards.temperatures)}
        ),
    )
    words: bool = option(  # time every word
        False,
        Flag(
            "--word-timestamps/--no-word-timestamps",
            "Add times and a probability to every word (json).",
            bool,
            section="Output",
            live=True,
        ),
        told=True,
        told_as="word_timestamps",
    )
    # For audits: the outcome holds the windows with their encoder states.
    keep_encoder_states: bool = option(False)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}; known: {', '.join(TASKS)}")
        try:
            for name in ("language", "initial_prompt", "hint"):
                if (text := getattr(self, name)) is not None:
                    check_text(name, text)
            if self.gamma is not None:
                check_whole("gamma", self.gamma, 0)
        except RequestError as error:
            raise UsageError(str(error)) from None
        for name in ("terms", "replacements", "redact"):
            if not isinstance(value := getattr(self, name), tuple):
                raise UsageError(f"{name} is {value!r}; give a tuple of texts, one for each")
        for name, check in (("terms", read_terms), ("replacements", Replacements.of)):
            try:
                check(getattr(self, name))
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None
        _ = self.beams

    @classmethod
    def typed(cls, given: Given) -> Self:
        """By what was typed for each `Flag`; options of which a command has none keep their defaults. Raises
        UsageError that names it."""
        found = dict[str, Any]()
        for name, own in DECLARED.items():
            if not any(flag.name in given for flag in own.flags):
                continue
            if own.typed is not None:
                found[name] = own.typed(given)
            elif (value := given[own.flags[0].name]) is not None:
                found[name] = value
        return cls(**found)

    def settled(self, beams: BeamSize | None) -> Self:
        """With this search where none is named. Raises UsageError where that contradicts other options."""
        return self if self.beam_size is not None else replace(self, beam_size=beams)

    @property
    def drafted(self) -> bool:
        """Whether the most probable tokens are written, at least at first."""
        return self.beam_size in (1, AUTO)

    @property
    def search(self) -> str:
        """How texts are found, in words."""
        words = {1: "most probable words", AUTO: f"{BEAMS} beams where words are doubtful"}
        return words.get(self.beam_size or AUTO, f"{self.beam_size} beams")

    @property
    def beams(self) -> Beams | None:
        """Those of a window that is searched; None where no window is. Raises UsageError."""
        try:
            size = BEAMS if self.beam_size in (AUTO, None) else cast(int, self.beam_size)
            beams = Beams(size, self.patience, self.length_penalty)
        except RequestError as error:
            raise UsageError(str(error)) from None
        if size > 1:
            return beams
        if (self.patience, self.length_penalty) != (1.0, None):
            raise UsageError("patience and length_penalty are for beams: give beam_size 2 or more")
        return None

    def told(self) -> dict[str, Json]:
        """What a transcript's settings say of them."""
        return {
            own.told_as or name: own.told(self) if callable(own.told) else getattr(self, name)
            for name, own in DECLARED.items()
            if own.told
        }


DECLARED: dict[str, Declared] = {f.name: f.metadata["option"] for f in fields(Options)}
"""What is declared of each option, by its name."""
