"""pyannote.audio, imported in one place: without its telemetry, its warnings and its surprises.

Everything else in the package takes pyannote's classes from here, so that what must be set before
the first import is set.
"""

from __future__ import annotations

import os
import warnings

# On by default, it sends durations and speaker counts of every call to its makers. Read when it is
# called, but also when it is imported.
os.environ["PYANNOTE_METRICS_ENABLED"] = "false"

QUIET = (
    # Decoding is ours: pyannote gets samples, so it needs no torchcodec and no FFmpeg libraries.
    r"\s*torchcodec is not installed correctly",
    # Bounds are a wish. Where they are missed, our result says so itself.
    r"\s*The detected number of speakers",
    # A window with a single frame of speech: its vector is not used.
    r"std\(\): degrees of freedom is <= 0",
    # Nobody speaks alone for long enough: the mean voice of nobody, which is not used either.
    r"Mean of empty slice",
    r"invalid value encountered in (scalar )?divide",
)
for message in QUIET:
    warnings.filterwarnings("ignore", message=message)

try:
    import torch
    from pyannote.audio import Model, Pipeline
    from pyannote.audio.core.io import Audio
    from pyannote.audio.core.plda import PLDA
    from pyannote.audio.core.task import Problem, Resolution, Specifications
    from pyannote.audio.pipelines import SpeakerDiarization
    from pyannote.audio.pipelines.clustering import VBxClustering
    from pyannote.audio.utils import vbx
    from pyannote.audio.utils.vbx import cluster_vbx
    from pyannote.core import Annotation, SlidingWindow, SlidingWindowFeature
except ImportError as missing:
    from forescribe.asr.errors import ModelError

    raise ModelError(
        f"diarization needs pyannote.audio ({missing}): run `scripts/setup` in forescribe's folder"
    ) from missing

# pyannote would do it on its first call, and the speech model's numbers would change in mid-run.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

# It prints a warning about its own convergence onto stdout, which is for results.
vars(vbx)["print"] = lambda *told: None

__all__ = [
    "PLDA",
    "Annotation",
    "Audio",
    "Model",
    "Pipeline",
    "Problem",
    "Resolution",
    "SlidingWindow",
    "SlidingWindowFeature",
    "Specifications",
    "SpeakerDiarization",
    "VBxClustering",
    "cluster_vbx",
]
