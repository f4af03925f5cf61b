"""Options about object storage: combinations that are refused by name."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.cli.options import shown_url
from forescribe.cli.transcribe_options import TranscribeOptions


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
