"""Windows that end with their first answer, for tests that count windows: random models close their answers
anywhere. What an answer leaves of its window is decoded in `test_rests`."""

from __future__ import annotations

import pytest

from forescribe.asr.decode import submission
from forescribe.asr.decode.options import Judgement
from forescribe.asr.decode.recording import Attempt
from forescribe.speculative.requests import Result


def whole(patch: pytest.MonkeyPatch) -> None:
    """No further parts, and no voice that is missed."""
    patch.setattr(submission, "rest_of", lambda _w, _o, _window, decoded, *_: (decoded, None))
    patch.setattr(submission, "accounted", lambda decoded, *_: decoded)


def judged(result: Result, judgement: Judgement, reason: str | None = None) -> Attempt:
    """An answer with a judgement that is planted."""
    return Attempt(result, judgement, reason, (True, 0.0))
