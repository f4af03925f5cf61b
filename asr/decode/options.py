"""Options of one transcription call. Frozen, checked once; knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..errors import UsageError
from ..model.special_tokens import TASKS, Task
from ..segment.windows import WindowOptions
from .guards import Guards


@dataclass(frozen=True)
class Options:
    """What to write, for one call. `language` None or "auto" detects it; `gamma` None is the
    engine's own, which it cannot exceed.

    `initial_prompt` is text before every window: names and spellings to expect. Raises UsageError
    for values that make no sense.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    initial_prompt: str | None = None
    gamma: int | None = None
    vad: bool = True
    windows: WindowOptions = field(default_factory=WindowOptions)
    words: bool = False  # a time for every word
    guards: Guards | None = None  # decode doubtful windows again; None believes every answer
    # "windows": cut in pauses, decoded in parallel. "sequential": Whisper's own long-form, where a
    # window starts at the last timestamp before; recordings share the batch, windows cannot.
    long_form: Literal["windows", "sequential"] = "windows"
    condition_on_previous_text: bool = True  # sequential only
    keep_encoder_states: bool = (
        False  # for audits: the outcome holds every window's tokens and memory
    )

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}; known: {', '.join(TASKS)}")
        for name, value in (("language", self.language), ("initial_prompt", self.initial_prompt)):
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
    """Raises UsageError for what is no string, or has no tokens: half of a surrogate pair, which is also
    how Python holds a byte of the command line that is not UTF-8."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} {value!r} is not Unicode text; give it in UTF-8") from None
