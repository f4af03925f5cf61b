"""Options about object storage: sizes, and combinations that are refused by name."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.cli.diarize import DiarizeOptions
from forescribe.cli.options import parse_bytes, shown_url
from forescribe.cli.transcribe_options import TranscribeOptions


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000000", 1_000_000),
        ("500MB", 500_000_000),
        ("20g", 20_000_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("1TB", 10**12),
        ("1b", 1),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_bytes("--spool-bytes", text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "12x", "1e9", "0.1", "GB", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--spool-bytes .*: not a size"):
        TranscribeOptions(audio=["a.mp3"], spool_bytes=text)
    with pytest.raises(UsageError, match="not a size"):
        DiarizeOptions(audio=["a.mp3"], spool_bytes=text)


def test_results_in_memory_would_be_lost() -> None:
    for output in ("memory://out", "MEMORY://out/x"):
        with pytest.raises(UsageError, match="ends with this command"):
            TranscribeOptions(audio=["a.mp3"], output_dir=output)


def test_reports_are_of_files_and_say_so_without_secrets() -> None:
    signed = "https://me:pw@host/a.mp3?Signature=9c41"
    with pytest.raises(UsageError, match="--report plays files") as caught:
        TranscribeOptions(audio=[signed], report="r.html")
    assert "9c41" not in str(caught.value) and "pw" not in str(caught.value)
    with pytest.raises(UsageError, match="--report"):
        TranscribeOptions(audio=["a.mp3"], output_dir="s3://out", report="r")
    assert shown_url("weird://user:pw@x?secret") == "weird://..."
