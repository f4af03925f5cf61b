"""`forescribe key`: the lines that it prints are settings, and a wrong right is named."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from forescribe.api.access.keys import Keyring, Rights, digest
from forescribe.api.settings import load
from forescribe.cli.main import app


def run(*arguments: str):
    return CliRunner().invoke(app, ["key", *arguments])


def test_a_key_is_printed_once_and_its_line_lets_it_in(tmp_path) -> None:
    made, file = run("team"), tmp_path / "service.toml"
    assert made.exit_code == 0
    key, line = made.stdout.strip(), made.stderr.partition("[api_keys]: ")[2]
    file.write_text(f"[api_keys]\n{line}")
    assert Keyring(load(file).api_keys).owner(key) == "team"
    assert key not in made.stderr


def test_a_key_with_rights() -> None:
    arguments = ["--scope", "audio", "--scope", "jobs", "--expires", "2027-01-31"]
    made = run("press.eu", *arguments, "--max-requests", "4")
    assert made.exit_code == 0
    read = tomllib.loads(made.stderr.partition("file:\n")[2])["api_keys"]["press.eu"]
    rights = Rights.model_validate(read)
    assert rights.hashes == (digest(made.stdout.strip()),) and rights.scopes == ("audio", "jobs")
    assert rights.max_requests == 4
    assert str(rights.expires) == "2027-01-31"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-requests", "0"], "--max-requests"),
        (["--scope", "all"], "--scope"),
        (["--expires", "tomorrow"], "--expires"),
    ],
)
def test_a_right_that_is_none_is_named_and_no_key_is_printed(arguments, said) -> None:
    made = run("team", *arguments)
    assert made.exit_code == 2 and said in made.stderr and made.stdout == ""
