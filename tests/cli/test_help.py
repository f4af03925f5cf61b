"""`--help`: sections, one line per option, defaults once; and the record that a command line becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.cli.option_records import SECTIONS
from forescribe.cli.options import PerformanceOptions
from forescribe.cli.transcribe_options import TranscribeOptions

ROOT = Path(__file__).resolve().parents[2]


def every_command(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        yield from every_command(child, f"{name} {child_name}".strip())


COMMANDS = dict(every_command())


def help_of(name: str) -> str:
    return CliRunner().invoke(app, [*name.split(), "--help"]).stdout


def declared(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_section_a_sentence_and_a_metavar(name: str) -> None:
    for option in declared(COMMANDS[name]):
        assert option.rich_help_panel in SECTIONS, option.name
        assert re.search(r"[\w)`]\.( {2}\[default: [^\]]+\])?$", option.help), option.help
        assert option.is_flag or option.metavar, option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_name_of_an_option_is_in_the_help(name: str) -> None:
    lines = re.sub(r"-\n +", "-", help_of(name))  # a name may be broken in two
    shown = set(re.findall(r"--?[a-z][\w-]*", lines.replace("--[no-]", "--")))
    for option in declared(COMMANDS[name]):
        assert shown.issuperset(option.opts), option.name


def test_an_option_with_a_list_may_be_repeated(tmp_path: Path) -> None:
    """The last `-f` alone counted."""
    recording, typed = (
        str(ROOT / "samples" / "silence.flac"),
        ["-f", "srt", "-fmd", "--output_format=tsv,srt"],
    )
    command = ["transcribe", recording, "--model=tiny.en", "-o", str(tmp_path), "--dry-run"]
    shown = CliRunner().invoke(app, [*command, *typed])
    assert shown.stdout == f"{recording} -> {tmp_path}/silence .srt .md .tsv\n"
    refused = CliRunner().invoke(app, [*command, "-l", "exx", "--lang", "en"])
    assert "unknown language 'exx'" in str(refused.exception)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_default_is_shown_once(name: str) -> None:
    for row in re.split(r"\n  (?=-)", help_of(name)):
        assert row.count("[default:") <= 1, row


def test_the_help_of_transcribe_fits_two_screens() -> None:
    """Of 50 lines and 100 columns, of which two remain free."""
    shown = CliRunner().invoke(app, ["transcribe", "--help"], terminal_width=98).stdout
    assert len(shown.splitlines()) <= 2 * 50


# The record


def test_options_are_frozen_and_checked_when_made() -> None:
    options = TranscribeOptions(["a.wav"], gamma="5", device="cpu")
    assert options.drafts == 5
    with pytest.raises(FrozenInstanceError):
        options.gamma = "6"  # type: ignore[misc]
    for impossible in (
        {"gamma": "99"},
        {"num_speakers": 2},
        {"output_format": "rttm"},
        {"records": True, "output_dir": "-"},
        {"report": "r.html", "audio": ["https://host/a.mp3"]},
        {"report": "r", "output_dir": "s3://out"},
        {"diarize": True, "word_timestamps": False},
        {"guards": False, "no_speech_threshold": "0.5"},
    ):
        with pytest.raises(UsageError):
            TranscribeOptions(**{"audio": ["a.wav"]} | impossible)  # type: ignore[arg-type]


def test_results_of_the_version_before_are_not_made_again_for_an_option_that_is_gone() -> None:
    assert TranscribeOptions(["a.wav"]).result_settings()["long_form"] == "windows"


def test_formats_include_those_of_speakers_if_there_are_speakers() -> None:
    assert TranscribeOptions(["a.wav"]).formats == "all"
    assert TranscribeOptions(["a.wav"], diarize=True).formats == "all,rttm"
    assert TranscribeOptions(["a.wav"], diarize=True, output_format="txt").formats == "txt"


def test_a_report_shows_words_unless_they_are_switched_off() -> None:
    assert TranscribeOptions(["a.wav"], report="r.html").wants_words is True
    assert TranscribeOptions(["a.wav"], report="r.html", word_timestamps=False).wants_words is False
    assert TranscribeOptions(["a.wav"]).wants_words is None


@pytest.mark.parametrize(("text", "number"), [("auto", None), ("AUTO", None), ("0", 0), ("64", 64)])
def test_gamma_is_a_number_or_auto(text: str, number: int | None) -> None:
    assert PerformanceOptions(gamma=text).drafts == number


@pytest.mark.parametrize("text", ["65", "-1", "", "1.5", "many"])
def test_other_gammas_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither auto nor a number from 0 to 64"):
        _ = PerformanceOptions(gamma=text).drafts
