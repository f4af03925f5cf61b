"""Options of one transcription call: frozen, and checked once. Knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..errors import UsageError
from ..model.special_tokens import TASKS, Task
from ..segment.windows import WindowOptions
from .guards import Guards


@dataclass(frozen=True)
class Options:
    """The options of a call.

    `language` None or "auto" detects the language. `gamma` is the number of drafted tokens per round;
    None takes the transcriber's own, which is also the maximum. `initial_prompt` is text before every
    window: names and spellings to expect. `hint` is text that is probably spoken, such as a script or an
    earlier transcript of the whole recording: drafts are copied from it, and no word depends on it.
    Raises UsageError for invalid values.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    initial_prompt: str | None = None
    hint: str | None = None
    gamma: int | None = None
    vad: bool = True
    windows: WindowOptions = field(default_factory=WindowOptions)
    words: bool = False  # time every word
    guards: Guards | None = None  # decode doubtful windows again; None keeps every answer
    # "windows": cut in pauses and decoded in parallel. "sequential": Whisper's own long-form, where a
    # window starts at the last timestamp of the previous one; only different recordings share a batch.
    long_form: Literal["windows", "sequential"] = "windows"
    condition_on_previous_text: bool = True  # sequential only
    keep_encoder_states: bool = (
        False  # for audits: the outcome holds the windows with their encoder states
    )

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}; known: {', '.join(TASKS)}")
        for name in ("language", "initial_prompt", "hint"):
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        whole = isinstance(self.gamma, int) and not isinstance(self.gamma, bool)
        if self.gamma is not None and (not whole or self.gamma < 0):
            raise UsageError(f"gamma is {self.gamma}; it must be 0 (plain decoding) or more")
        if self.long_form not in ("windows", "sequential"):
            raise UsageError(f"long form {self.long_form!r} is neither windows nor sequential")
        if self.long_form == "sequential" and not self.timestamps:
            raise UsageError(
                "sequential decoding follows the timestamps: it cannot do without them"
            )


def _check_text(name: str, value: object) -> None:
    """Raise UsageError for a value that is not a string, or not Unicode text: Python represents bytes of
    the command line that are not UTF-8 as lone surrogates."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} {value!r} is not Unicode text; give it in UTF-8") from None
