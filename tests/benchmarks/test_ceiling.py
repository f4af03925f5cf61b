"""What a file costs apart from the model, in counts: the same on every machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.ceiling import Replay, called, served, texts
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from tests.docs.pages import ROOT

CALLS = {False: (90, 0.9), True: (135, 3.3)}
"""Functions of Python and operators of torch for a token, without and with word times: most of a recording of
30 s are for reading it. 76 and 0.73, 113 and 2.7 were counted."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Calls in this thread: of functions of Python, and of operators of torch."""
    counts: Counter[str] = Counter()

    def count(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            counts["python"] += 1
        elif event == "c_call" and str(getattr(called, "__module__", "")).startswith("torch"):
            counts["torch"] += 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)


def test_python_calls_for_a_token() -> None:
    loaded = Transcriber.load("tiny.en", "none", batch=8, gamma=0)
    path = str(ROOT / "samples" / "memo.flac")
    for words, (python, torch) in CALLS.items():
        options = Options(language="en", words=words, guards=Guards())
        with Replay(loaded.context) as replay:
            expected = texts(called(loaded, [path], options)[0])
            replay.free = True
            tokens = sum(len(result.tokens) for result in replay.answers.values())
            with counting() as counts:
                outcomes, _ = called(loaded, [path], options)
            assert tokens > 100
            assert 0 < counts["python"] / tokens < python and 0 < counts["torch"] / tokens < torch
            assert texts(outcomes) == texts(served(loaded, [path], options)[0]) == expected
