"""Windows that end with their first answer, for tests that count windows: random models close their answers
anywhere. What an answer leaves of its window is decoded in `test_rests`."""

from __future__ import annotations

import pytest

from forescribe.asr.decode import recording
from forescribe.asr.decode.guards import Judgement
from forescribe.asr.decode.judge import Ending, Rest
from forescribe.asr.decode.window import Answer, PendingWindow
from forescribe.speculative.requests import Result


def whole(patch: pytest.MonkeyPatch) -> None:
    """No further parts, and no voice that is missed."""
    patch.setattr(recording, "rest_of", lambda _w, _o, pending, ending, *_: all_of(pending, ending))
    patch.setattr(recording, "wordless_of", lambda *_: ((), None))


def all_of(pending: PendingWindow, ending: Ending) -> tuple[Ending, Rest]:
    return ending, Rest(pending.window.end, ending.answer.result.tokens)


def judged(result: Result, judgement: Judgement, reason: str | None = None) -> Answer:
    """An answer with a judgement that is planted."""
    return Answer(result, judgement, reason, (True, 0.0))
