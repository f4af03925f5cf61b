"""Side effects that importing pyannote and silero must not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(code: str) -> str:
    """What a fresh process prints; any warning ends it."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_loading_the_engine_sends_nothing_warns_of_nothing_and_leaves_the_threads_alone() -> None:
    code = """
import os, sys, warnings
os.environ["PYANNOTE_METRICS_ENABLED"] = "true"  # whatever the user's shell says
import torch
before = torch.get_num_threads()
with warnings.catch_warnings(record=True) as heard:
    from forescribe.diarize.engines.upstream import SpeakerDiarization
    from forescribe.asr.segment.vad import SileroDetector
    SileroDetector()
from pyannote.audio.telemetry.metrics import is_metrics_enabled
print(is_metrics_enabled(), torch.get_num_threads() == before, "silero_vad" in sys.modules)
print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
print([str(w.message)[:60] for w in heard if "pyannote" in str(w.filename)])
print([name for name in ("resemblyzer", "webrtcvad") if name in sys.modules])
"""
    assert run(code).splitlines() == ["False True False", "False False", "[]", "[]"]


def test_what_chooses_an_engine_is_light() -> None:
    heavy = "{'torch', 'pyannote', 'sklearn', 'transformers', 'lightning'}"
    code = f"import sys, forescribe.diarize.engines.registry; print(sorted({heavy} & sys.modules.keys()))"
    assert run(code) == "[]\n"
