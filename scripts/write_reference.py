"""Writes docs/reference/ from the code: every command and option, every setting of the service.

    python scripts/write_reference.py            # writes what has changed, and names it
    python scripts/write_reference.py --check    # writes nothing; exit status 1 where something has

Commands are described by their own help, settings by the comments beside them in api/settings.py.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT))

MADE = "<!-- Written by scripts/reference from the code; changes here are lost. -->"
NAME = re.compile(r" [^`]+`$")
"""The word for an option's value, behind its name."""
FEW = 10
"""Options of a command from which on they stand under the headings of its help."""
SIZES = {"GiB": 1 << 30, "MiB": 1 << 20}
TIMES = {"d": 86400, "h": 3600, "min": 60}
STATED = re.compile(r"\s*\[default: (?P<default>[^\]]*)\]")


def cli() -> str:
    """The page of all commands, in the order of `forescribe --help`."""
    from typer.main import get_command

    from forescribe.cli.main import app

    page = ["# The command", MADE, _paragraphs(app.info.help)]
    page.append(
        "`--[no-]vad` stands for `--vad` and `--no-vad`; a switch is off unless its default is on. Options "
        "may be written with `_` instead of `-`. `forescribe COMMAND --help` shows everything about one "
        "command. For `transcribe` by task, see [transcribe](../transcribe.md)."
    )
    described: dict[tuple[str, str], Described] = {}
    for name, command in _commands(get_command(app), "forescribe"):
        page += [f"## {name}", _paragraphs(command.help), *_parameters(name, command, described)]
    return "\n\n".join(part for part in page if part) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands that are not groups, with their full names."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        if not child.hidden:
            yield from _commands(child, f"{name} {child_name}")


class Described(NamedTuple):
    """Where an option or argument was described first, and with which default."""

    command: str
    default: str


def _parameters(name: str, command: Any, described: dict[tuple[str, str], Described]) -> list[str]:
    """A command's arguments and options; what an earlier command has in the same words is only named."""
    parts: list[str] = []
    known: dict[str, list[str]] = {}
    sections: dict[str, list[str]] = {}
    for parameter in (p for p in command.params if not getattr(p, "hidden", False)):
        spelling, default, text = _cells(parameter)
        before = described.setdefault((spelling, text), Described(name, default.strip("`")))
        if before.command != name:
            same = before.default == default.strip("`")
            alone = NAME.sub("`", spelling.partition(", ")[0])
            known.setdefault(before.command, []).append(
                alone if same else f"{alone} (default {default or 'none'})"
            )
        elif parameter.param_type_name == "argument":
            parts.append(f"{spelling}: {' '.join(text.split())}")
        else:
            shown = "" if default in ("", "none") else f" (default {default})"
            row = f"- {spelling}{shown}: {' '.join(text.split())}"
            sections.setdefault(parameter.rich_help_panel or "Other", []).append(row)
    if sum(map(len, sections.values())) < FEW:
        rows = [row for section in _sorted(sections) for row in sections[section]]
        sections = {"": rows} if rows else {}
    for section in _sorted(sections):
        parts.append("\n".join([*([f"**{section}**\n"] if section else []), *sections[section]]))
    for other, names in known.items():
        parts.append(f"As for [{other}](#{other.replace(' ', '-')}): {', '.join(names)}.")
    return parts


def _sorted(sections: dict[str, list[str]]) -> list[str]:
    from forescribe.cli.option_records import SECTIONS

    return sorted(sections, key=(*SECTIONS, "Other", "").index)


def _cells(option: Any) -> tuple[str, str, str]:
    """The names and value of an option or argument, its default, and its help."""
    if option.param_type_name == "argument":
        return f"`{option.metavar or option.name.upper()}`", "", option.help or ""
    names = sorted(
        option.opts, key=lambda name: (not name.startswith("--"), name != option.opts[0])
    )
    opposite = [f"--no-{name[2:]}" for name in names[:1]]
    if option.secondary_opts == opposite:
        names[0] = f"--[no-]{names[0][2:]}"
    value = "" if option.is_flag else " " + (option.metavar or option.name.upper())
    spellings = [f"`{name}{value if i == 0 else ''}`" for i, name in enumerate(names)]
    if option.secondary_opts != opposite:
        spellings += [f"`{name}`" for name in option.secondary_opts]
    text = option.help or ""
    stated = STATED.search(text)
    default = stated["default"] if stated else _default(option)
    return ", ".join(spellings), default, STATED.sub("", text)


def _default(option: Any) -> str:
    default = option.default
    if option.is_flag:
        return "on" if default else ""
    return "" if default in (None, "") or callable(default) else f"`{default}`"


def flags() -> str:
    """The page of flags of other programs that have no meaning here."""
    from forescribe.cli.option_records import FOREIGN

    named = dict[str, list[str]]()
    for name, instead in FOREIGN.items():
        named.setdefault(instead, []).append(f"`{name}`")
    page = [
        "# Flags of other programs",
        MADE,
        "Other programs' names for what `forescribe` has, such as `--lang`, are listed "
        "[with its options](cli.md), and a switch may be followed by True or False. These are refused in one "
        "line that says what to use, all others with the options of similar names:",
        "\n".join(f"- {', '.join(names)}: {instead}" for instead, names in named.items()),
    ]
    return "\n\n".join(page) + "\n"


def settings() -> str:
    """The page of all settings, in the order and under the headings of the source."""
    from forescribe.api.settings import PREFIX, Settings

    page = [
        "# Settings of the service",
        MADE,
        f"Settings are read from the TOML file of `forescribe serve --settings FILE` and from environment "
        f"variables with the prefix `{PREFIX}`: `max_audio_s` is `{PREFIX}MAX_AUDIO_S`. Options of the "
        "command override the environment, which overrides the file; an unknown name is an error. In the "
        "environment, lists and tables are JSON. Unless noted, counts and bytes are at least 1, and times "
        "(`_s`, in seconds) and rates above 0. How to use them: [the service](../serve.md).",
    ]
    for heading, fields in _sections(inspect.getsource(Settings)):
        page.append(f"## {heading}")
        rows = []
        for name, comment in fields:
            if name.startswith("_"):
                continue
            field = Settings.model_fields[name]
            given = _given(name, field)
            text = "; ".join(filter(None, (comment, _bounds(field))))
            stated = f" ({given})" if given else ""
            rows.append(f"- `{name}`{stated}" + (f": {text}" if text else ""))
        page.append("\n".join(rows))
    return "\n\n".join(page) + "\n"


def _sections(source: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The headings (comments on lines of their own), and below each the fields with the comments beside
    them."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    before = body.lineno
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            before = node.end_lineno or before
            continue
        above = range(before + 1, node.lineno)
        heading = " ".join(comments[n] for n in above if lines[n - 1].lstrip().startswith("#"))
        if heading or not sections:
            sections.append((heading.rstrip(".") or "General", []))
        within = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        sections[-1][1].append(
            (node.target.id, " ".join(comments[n] for n in within if n in comments))
        )
        before = node.end_lineno or before
    return sections


def _bounds(field: Any) -> str:
    """What a number may be, where this is not said of all."""
    limits = [*field.metadata, *_optional(field.annotation)]
    least = [limit.ge for limit in limits if getattr(limit, "ge", 1) != 1]
    most = [limit.le for limit in limits if hasattr(limit, "le")]
    words = [f"at least {n}" for n in least] + [f"at most {n}" for n in most]
    return ", ".join(words)


def _optional(annotation: Any) -> list[Any]:
    """The bounds within `Annotated[int, ...] | None`."""
    inner = [part for part in get_args(annotation) if get_origin(part) is Annotated]
    return [limit for part in inner for info in part.__metadata__ for limit in info.metadata]


def _given(name: str, field: Any) -> str:
    """A default as typed, and large numbers also with their unit."""
    default = field.get_default(call_default_factory=True)
    if default is None or default == "" or default == {} or default == ():
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return ", ".join(f"`{item}`" for item in default)
    if not isinstance(default, float | int):
        return f"`{default}`"
    shown = f"`{default:.0f}`" if default == int(default) else f"`{default:g}`"
    units = SIZES if name.endswith("bytes") or "_bytes_" in name else TIMES
    unit = next((u for u, size in units.items() if default >= size and default % size == 0), None)
    known = unit is not None and (units is SIZES or name.endswith("_s"))
    return f"{shown}, {default / units[unit]:g} {unit}" if known and unit else shown


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "")


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli, "flags.md": flags, "settings.md": settings}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, render in PAGES.items():
        path, text = FOLDER / name, render()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        message = "out of date: run scripts/reference" if check else "written"
        print(f"{', '.join(stale)}: {message}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
