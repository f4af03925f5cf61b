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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT))

SECTIONS = "Service Input Output Model Decoding Training Speakers Performance Diagnostics".split()
MADE = "<!-- Written by scripts/reference from the code; changes here are lost. -->"
STATED = re.compile(r"\s*\[default: (?P<default>[^\]]*)\]")


def cli() -> str:
    """The page of all commands, in the order of `forescribe --help`."""
    from typer.main import get_command

    from forescribe.cli.main import app

    page = ["# The command", MADE, _paragraphs(app.info.help)]
    page.append(
        "Options may be written with `_` instead of `-`. `forescribe COMMAND --help` shows the same text in "
        "a terminal. For `transcribe` by task, see [transcribe](../transcribe.md)."
    )
    for name, command in _commands(get_command(app), "forescribe"):
        page += [f"## {name}", _paragraphs(command.help), *_parameters(command)]
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


def _parameters(command: Any) -> list[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    parts = [f"`{p.metavar or p.name.upper()}`: {_cell(p.help or '')}" for p in arguments]
    sections: dict[str, list[Any]] = {}
    for option in options:
        sections.setdefault(option.rich_help_panel or "Other", []).append(option)
    for section in sorted(sections, key=(*SECTIONS, "Other").index):
        rows = [f"| {section} | default | description |", "|---|---|---|"]
        rows += [
            "| " + " | ".join(map(_cell, _option(option))) + " |" for option in sections[section]
        ]
        parts.append("\n".join(rows))
    return parts


def _option(option: Any) -> tuple[str, str, str]:
    """An option's names and value, its default, and its help."""
    names = sorted(
        option.opts, key=lambda name: (not name.startswith("--"), name != option.opts[0])
    )
    value = "" if option.is_flag else " " + (option.metavar or option.name.upper())
    spellings = [f"`{name}{value if i == 0 else ''}`" for i, name in enumerate(names)]
    spellings += [f"`{name}`" for name in option.secondary_opts]
    text = option.help or ""
    stated = STATED.search(text)
    default = stated["default"] if stated else _default(option)
    return ", ".join(spellings), default, STATED.sub("", text)


def _default(option: Any) -> str:
    default = option.default
    if option.is_flag:
        if default is None or not option.secondary_opts:
            return ""
        return f"`{(option.opts if default else option.secondary_opts)[0]}`"
    return "" if default in (None, "") or callable(default) else f"`{default}`"


def flags() -> str:
    """The page of other programs' flags: what is accepted, what is refused, and what to use instead."""
    from forescribe.cli.foreign_flags import FOREIGN, SHORT

    page = [
        "# Flags of other programs",
        MADE,
        "Flags of openai/whisper, whisperX, faster-whisper's command and whisper.cpp that "
        "`forescribe transcribe` does not have under the same name. They may be written with `_` or `-`; "
        "a switch without a value is True. All values that are not listed as accepted are refused, with "
        "the reason and the alternative.",
    ]
    rows = ["| flag | accepted | refused because | instead |", "|---|---|---|---|"]
    for name, flag in FOREIGN.items():
        accepted = "; ".join(_meaning(value, ours) for value, ours in flag.means.items())
        refusal = ("", "") if ANY in flag.means else (flag.why, flag.instead)
        cells = (f"`--{name[2:].replace('-', '_')}`", accepted, *refusal)
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    page += ["\n".join(rows), "## Words after one dash", "whisper.cpp's options; all are refused."]
    rows = ["| option | instead |", "|---|---|"]
    rows += [f"| `{name}` | {instead} |" for name, instead in SHORT.items()]
    return "\n\n".join([*page, "\n".join(rows)]) + "\n"


ANY = "*"  # foreign_flags.ANY, without importing the command


def _meaning(value: str, ours: tuple[str, ...]) -> str:
    """A value that is accepted, and our options for it."""
    typed = value.capitalize() if value in ("true", "false", "none") else value
    shown = "any value" if value == ANY else f"`{typed}`"
    translated = " ".join(ours).replace("{}", "VALUE")
    return f"{shown}: `{translated}`" if ours else f"{shown}: no effect"


def settings() -> str:
    """The page of all settings, in the order and under the headings of the source."""
    from forescribe.api.settings import PREFIX, Settings

    page = [
        "# Settings of the service",
        MADE,
        f"Settings are read from the TOML file of `forescribe serve --settings FILE` and from environment "
        f"variables with the prefix `{PREFIX}`: `max_audio_s` is `{PREFIX}MAX_AUDIO_S`. Options of the "
        "command override the environment, which overrides the file; an unknown name is an error. In the "
        "environment, lists and tables are JSON. How to use them: [the service](../serve.md).",
    ]
    for heading, fields in _sections(inspect.getsource(Settings)):
        page.append(f"## {heading}")
        rows = ["| setting | value | default | description |", "|---|---|---|---|"]
        for name, comment in fields:
            if name.startswith("_"):
                continue
            field = Settings.model_fields[name]
            cells = (f"`{name}`", _kind(field), _given(field), comment)
            rows.append("| " + " | ".join(map(_cell, cells)) + " |")
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


def _kind(field: Any) -> str:
    """A field's type with its bounds, in words."""
    name = getattr(field.annotation, "__name__", None)
    if name is None or "[" in str(field.annotation) or "|" in str(field.annotation):
        name = re.sub(r"\b(\w+\.)+", "", str(field.annotation))
    words = {
        "str": "text",
        "bool": "true or false",
        "float": "number",
        "int": "whole number",
        "Path": "path",
    }
    name = re.sub(r"\w+", lambda m: words.get(m[0], m[0]), name).replace(" | None", "")
    name = re.sub(r"dict\[text, .+\]", "table", name.replace("tuple[text, ...]", "list of texts"))
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [
        f"{word} {getattr(limit, sign):g}"
        for limit in field.metadata
        for sign, word in signs.items()
        if getattr(limit, sign, None) is not None
    ]
    return ", ".join([name, *bounds])


def _given(field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    if default is None or default == "" or default == {} or default == ():
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return ", ".join(f"`{item}`" for item in default)
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "")


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "flags.md": flags,
    "settings.md": settings,
}


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
