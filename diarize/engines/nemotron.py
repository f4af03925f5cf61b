"""NVIDIA's Nemotron 3 Diarization: a network that hears up to eight speakers, also at once.

It is read from a folder as transformers saves it, the hub's cache or a download, as safetensors only. This
module is light; loading the network imports torch and transformers.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import ModelError
from forescribe.asr.model.conversion.converting import check_finite
from forescribe.speculative.errors import load_cause
from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import CONFIG, check_complete, missing, quiet

from ..diarizer import Engine

if TYPE_CHECKING:
    from .nemotron_blocks import NemotronDiarizer

NAME = "nemotron"
REPOSITORY = "nvidia/Nemotron-3-Diarization"
MODEL_TYPE = "nemotron3_diarization"
KLASS = "Nemotron3DiarizationForAudioFrameClassification"
PROCESSORS = ("processor_config.json", "preprocessor_config.json")


def describes(folder: Path) -> bool:
    """Whether the configuration in a folder is one of this network."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (
        config.get("model_type") == MODEL_TYPE or KLASS in (config.get("architectures") or ())
    )


def lacks(folder: Path) -> str | None:
    """What a folder lacks of the configurations and weights; None if nothing."""
    if not describes(folder):
        return f"{CONFIG} with the model_type {MODEL_TYPE}"
    if not any((folder / name).is_file() for name in PROCESSORS):
        return PROCESSORS[0]
    return missing(folder) if any(folder.glob("*.safetensors")) else "model.safetensors"


FAMILY = hub.Family(
    patterns=(("*.json", "model.safetensors", "model-*-of-*.safetensors"),),
    contents=f"it needs {CONFIG}, {PROCESSORS[0]} and model.safetensors, as in https://hf.co/{REPOSITORY}",
    alternatives={"diarizer": "or use --diarizer embedded, which needs no download"},
    missing=lacks,
)


def locate(name: str | Path = REPOSITORY, *, network: bool = True) -> Path:
    """The folder of the network, downloaded if necessary and allowed. Raises ModelError with instructions."""
    try:
        return hub.locate(name, FAMILY, role="diarizer", network=network)
    except hub.HubError as error:
        raise ModelError(str(error)) from error.__cause__


def load(folder: Path, *, device: str = "cpu", name: str = NAME) -> NemotronDiarizer:
    """Load the network in a folder, and the bundled encoder. Raises ModelError for other weights."""
    import torch
    import transformers

    from . import embedded
    from .nemotron_blocks import NemotronDiarizer, NemotronNetwork

    kind: Any = getattr(transformers, KLASS)
    try:
        with quiet():
            processor = transformers.Nemotron3DiarizationProcessor.from_pretrained(
                folder, local_files_only=True
            )
            model, report = kind.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_complete` names them
            )
        check_complete(report)
        check_finite(model.state_dict())  # of NaN nobody would be heard
        network = NemotronNetwork(model, processor, device)
    except Exception as error:  # json, safetensors and transformers raise different exceptions
        cause = load_cause(error)
        raise ModelError(f"the diarizer in {str(folder)!r} cannot be loaded: {cause}") from error
    details = {"folder": str(folder), "voices": embedded.VOICES, "device": device}
    details |= {package: version(package) for package in ("transformers", "torch")}
    voices = embedded.folder()
    engine = Engine(name, embedded.encoder_identity(voices), embedded.THRESHOLDS, details)
    return NemotronDiarizer(network, voices, engine, device)
