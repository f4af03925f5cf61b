"""An option of decoding is declared once: commands, forms and transcripts have what `Options` declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from forescribe.api.speech.forms import ARRAYS, TranscriptionForm, TranslationForm
from forescribe.asr.decode.options import DECLARED, Options
from forescribe.cli.main import app

ROOT = Path(__file__).parents[3]
DECLARATION = ROOT / "asr" / "decode" / "options.py"
FACES = ("api", "forescribe", "scripts")
"""Everything around the algorithm: what people type, send and read. In `asr`, `speculative` and `diarize` an
option is used, and may be so anywhere; only its declaration counts there."""

MOST = 3
"""Product files for one option: where it is declared, and two with a reason of their own, such as the
signature of `forescribe.transcribe`, which editors complete."""


def named(path: Path) -> Iterator[str]:
    """Identifiers of a file, and whole strings: no prose, such as advice that names a flag."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(" ")[0].lstrip("-").replace("-", "_")
        for name in ("id", "attr", "arg"):
            if isinstance(found := getattr(node, name, None), str):
                yield found


@pytest.mark.parametrize("name", ["patience", "beam_size", "redact", "terms", "length_penalty"])
def test_an_option_is_named_in_three_product_files_at_most(name: str) -> None:
    faces = [path for face in FACES for path in (ROOT / face).rglob("*.py")]
    naming = [path for path in (DECLARATION, *faces) if name in named(path)]
    assert DECLARATION in naming and len(naming) <= MOST, naming


def test_every_flag_is_one_of_the_command_that_transcribes() -> None:
    options = {p.name: p for p in get_command(app).commands["transcribe"].params}  # type: ignore[attr-defined]
    flags = [flag for own in DECLARED.values() for flag in own.flags]
    assert flags
    for flag in flags:
        option = options[flag.name]
        spelled = {*option.opts, *option.secondary_opts}
        assert set(flag.names.replace("/", " ").split()) - spelled <= {option.metavar}, flag
        assert (option.help or "").startswith(flag.help) and option.default == flag.default


def test_every_form_field_is_one_of_the_forms() -> None:
    fields = [field for own in DECLARED.values() for field in own.fields]
    assert fields
    for field in fields:
        made = TranscriptionForm.model_fields[field.name]
        assert made.default == field.default and (field.name in ARRAYS) == bool(field.entries)
        assert (field.name in TranslationForm.model_fields) == field.translations


def test_what_people_type_by_default_is_what_a_form_means_by_default() -> None:
    typed = {flag.name: flag.default for own in DECLARED.values() for flag in own.flags}
    sent = {field.name: field.default for own in DECLARED.values() for field in own.fields}
    options = Options.typed(typed)
    for name, own in DECLARED.items():
        if own.flags and own.fields:
            meant = own.asked(sent) if own.asked is not None else sent[own.fields[0].name]
            assert meant == getattr(options, name), name
