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


@pytest.mark.nightly  # imports pyannote.audio: 15 s
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


@pytest.mark.slow
def test_the_bundled_segmentation_computes_the_numbers_of_pyannotes_class() -> None:
    """To the last bit, also of its receptive field."""
    code = """
import numpy as np, torch
from forescribe.diarize.engines import segmentation, upstream
from forescribe.diarize.engines.embedded import FOLDER
from forescribe.diarize.engines.voice_encoder import read_weights
from pyannote.audio.core.task import Problem, Resolution, Specifications
from pyannote.audio.models.segmentation import PyanNet
theirs = PyanNet(lstm={"num_layers": 4})
theirs.specifications = Specifications(
    problem=Problem.MONO_LABEL_CLASSIFICATION, resolution=Resolution.FRAME, duration=10.0,
    classes=["a", "b", "c"], powerset_max_classes=2, permutation_invariant=True,
)
theirs.build()
theirs.load_state_dict(read_weights(FOLDER / segmentation.NAME))
ours = segmentation.load(FOLDER).network
sound = torch.from_numpy(np.random.default_rng(3).normal(size=(3, 1, 160000)).astype(np.float32))
sound[1] *= torch.linspace(0, 1, 160000)
with torch.inference_mode():
    print(torch.equal(ours(sound), theirs.eval()(sound)))
field = theirs.receptive_field
print(abs(field.step - segmentation.FRAME_S) < 1e-9)
print(abs(field.start + field.duration / 2 - segmentation.CENTRE_S) < 1e-4)
"""
    assert run(code).splitlines() == ["True"] * 3


def test_the_embedded_engine_is_loaded_without_pyannote() -> None:
    heavy = "{'pyannote', 'lightning', 'torchmetrics', 'librosa', 'matplotlib', 'sklearn'}"
    code = (
        "import sys; from forescribe.diarize.engines.registry import load; load('embedded');"
        f" print(sorted({heavy} & sys.modules.keys()))"
    )
    assert run(code) == "[]\n"


def test_what_chooses_an_engine_is_light() -> None:
    heavy = "{'torch', 'pyannote', 'sklearn', 'transformers', 'lightning'}"
    code = f"import sys, forescribe.diarize.engines.registry; print(sorted({heavy} & sys.modules.keys()))"
    assert run(code) == "[]\n"
