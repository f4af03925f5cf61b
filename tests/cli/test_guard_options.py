"""Guards as people type them: on unless switched off, nonsense is refused by name."""

from __future__ import annotations

import pytest

from forescribe.asr.decode.options import Guards
from forescribe.asr.errors import UsageError
from forescribe.cli.options import guards


def test_thresholds_make_guards() -> None:
    assert guards(False, increment=None, no_speech=None) is None
    assert guards(True, increment=None, no_speech=None) == Guards()
    made = guards(True, increment="0.5", no_speech="0.3", logprob="None", compression_ratio=None)
    assert made is not None
    assert (made.no_speech, made.logprob, made.compression_ratio) == (0.3, None, 2.4)
    assert made.temperatures == (0.0, 0.5, 1.0)
    assert guards(True, increment="None").temperatures == (0.0,)
    assert guards(True, increment="0.2") == Guards()


@pytest.mark.parametrize(
    ("on", "thresholds", "message"),
    [
        (False, {"no_speech": "0.6"}, "contradict"),
        (True, {"no_speech": "some"}, "--no-speech-threshold some is neither a number nor None"),
        (True, {"logprob": "nan"}, "neither a number nor None"),
        (True, {"increment": "0"}, "give 0.01 or more"),
        (True, {"increment": "-1"}, "give 0.01 or more"),
        (True, {"no_speech": "1.5"}, "a probability"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(on, thresholds, message) -> None:
    with pytest.raises(UsageError, match=message):
        guards(on, **{"increment": None, **thresholds})
