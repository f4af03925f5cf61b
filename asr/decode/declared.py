"""How an option of decoding is declared: once, with every name that it has.

    patience: float = option(
        1.0,
        Flag("--patience P", "Beams end with N x P texts.", float, shown="1.0"),
        FormField("patience", float, 1.0, gt=0, le=MOST_PATIENCE),
        told=True,
    )

A `Flag` is what people type, a `FormField` what the service is sent. Most options have one of each, whose
value is the option's; where they are several, or mean something else, `typed` and `asked` read the option's
value from all that was typed or sent. The options are declared in `options.py`; commands, forms, transcripts
and the reference pages are made from that. Import is light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

from ..errors import UsageError
from ..model.languages import AUTO as AUTO

Given = Mapping[str, Any]
"""Values by the names of flags or of form fields."""


@dataclass(frozen=True)
class Flag:
    """An option on the command line.

    `names` are its spellings, and the word for its value: `--language --lang -l LANG`. `kind` is the type of
    what is typed, `shown` the default in words where `default` says nothing. `changes` says whether results
    depend on it, and are made anew where it has changed; `live` whether text that is still spoken has it.
    """

    names: str
    help: str
    kind: Any = str
    default: Any = None
    section: str = "Decoding"
    shown: str | None = None
    changes: bool = True
    live: bool = False

    @property
    def name(self) -> str:
        """As Python writes it: `initial_prompt` for `--initial-prompt --prompt TEXT`."""
        return self.names.split()[0].partition("/")[0].lstrip("-").replace("-", "_")


class FormField:
    """An option in the forms of the service.

    `kind` is the type of its value, or of an entry where it is a list of at most `entries`; with `lines` a
    field may hold several entries, one a line. `words` may stand in place of a value. `limits` are bounds as
    pydantic names them. Translations have it too unless `translations` is False, live sessions if `live`.
    """

    def __init__(
        self,
        name: str,
        kind: Any,
        default: Any = None,
        *,
        entries: int = 0,
        lines: bool = False,
        words: Sequence[str] = (),
        translations: bool = True,
        live: bool = False,
        **limits: float,
    ) -> None:
        self.name, self.kind = name, kind
        self.default = () if entries else default
        self.entries, self.lines, self.words = entries, lines, tuple(words)
        self.translations, self.live, self.limits = translations, live, limits


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is known of an option, besides its type and default.

    `typed` and `asked` make its value of those of all flags and of all form fields; without them it is the
    value of the only one. `told` says whether a transcript's settings name it (as `told_as`), or makes of all
    options what they say. `kept` makes of its value what a result's fingerprint holds, None for nothing;
    without it that is what was typed. `served` raises UsageError for a value that cannot be served in a
    language. All of them raise UsageError.
    """

    flags: Sequence[Flag]
    fields: Sequence[FormField]
    typed: Callable[[Given], Any] | None = None
    asked: Callable[[Given], Any] | None = None
    told: Callable[[Any], Any] | bool = False
    told_as: str | None = None
    kept: Callable[[Any], Any] | None = None
    served: Callable[[Any, str], None] | None = None


def option(
    default: Any = MISSING, *names: Flag | FormField, default_factory: Any = MISSING, **known: Any
) -> Any:
    """Declare a field of `Options`, with what is `known` of it as in `Declared`."""
    own = Declared(
        flags=[name for name in names if isinstance(name, Flag)],
        fields=[name for name in names if isinstance(name, FormField)],
        **known,
    )
    return field(default=default, default_factory=default_factory, metadata={"option": own})


def whole_or_auto(flag: str, typed: str, least: int, most: int) -> int | None:
    """A whole number, None for `auto`. Raises UsageError."""
    text = typed.strip().lower()
    if text == AUTO:
        return None
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"{flag} {typed} is neither {AUTO} nor a number from {least} to {most}")
    return int(text)
