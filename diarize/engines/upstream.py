"""The only import of pyannote.audio, without its telemetry and warnings.

All other modules import pyannote's classes from here, as some settings must precede its first import.
"""

from __future__ import annotations

import os
import warnings

# Telemetry is on by default: it sends the duration and the number of speakers of every call. It is read
# at import and at every call.
os.environ["PYANNOTE_METRICS_ENABLED"] = "false"

QUIET = (
    # pyannote gets decoded samples, so it needs neither torchcodec nor FFmpeg libraries.
    r"\s*torchcodec is not installed correctly",
    # Bounds may be missed; the result then has a separate warning.
    r"\s*The detected number of speakers",
    # A window with a single frame of speech; its vector is not used.
    r"std\(\): degrees of freedom is <= 0",
    # A speaker without enough speech of their own; the mean is not used either.
    r"Mean of empty slice",
    r"invalid value encountered in (scalar )?divide",
)
for message in QUIET:
    warnings.filterwarnings("ignore", message=message)

try:
    import torch
    from pyannote.audio import Pipeline
    from pyannote.audio.pipelines import SpeakerDiarization
    from pyannote.audio.utils import vbx
    from pyannote.core import Annotation, SlidingWindowFeature
except ImportError as missing:
    from forescribe.asr.errors import ModelError, how_to_install

    raise ModelError(
        f"diarization needs pyannote.audio ({missing}): {how_to_install('diarize')}"
    ) from missing

# pyannote does so at its first call, which would change the results of the speech model during a run.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

# VBx prints a warning about convergence to stdout, which is for results.
vars(vbx)["print"] = lambda *args: None

__all__ = ["Annotation", "Pipeline", "SlidingWindowFeature", "SpeakerDiarization"]
