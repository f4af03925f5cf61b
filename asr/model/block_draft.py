"""A block head as the draft of a Whisper target: read from its folder and compared with the target.

Knows a folder and a configuration; nothing of presets or of how the head drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.heads.whisper_block import BlockShape, WhisperBlock, read_block

from ..errors import ModelError


def load_block(name: str | Path, folder: Path, target: Any, device: Device) -> WhisperBlock:
    """The block head in a folder, on a device and in its number format; `target` is the model that it is to
    draft for. Raises ModelError for a damaged folder, for 8-bit integers, and as `model_mismatch` for another
    target's head."""
    if device.int8:
        raise ModelError(f"--draft {name}: a block head has no 8-bit form; leave --draft-dtype out")
    try:
        head = read_block(folder)
    except LoadError as error:
        raise ModelError(f"--draft {name}: {error}") from error
    problem = _problem(head.shape, target.config)
    if problem is not None:
        raise ModelError(
            f"{name} is a block head that cannot draft for this target: {problem}; --draft none",
            code="model_mismatch",
        )
    return head.to(device.torch, device.stored)


def _problem(shape: BlockShape, config: Any) -> str | None:
    """Where the sizes that a head was made for differ from a target's."""
    compared = (
        ("states of {} numbers", shape.width, config.d_model),
        ("{} layers", shape.target_layers, config.decoder_layers),
        ("{} tokens", shape.vocab, config.vocab_size),
        ("{} positions", shape.positions, config.max_target_positions),
    )
    for what, ours, theirs in compared:
        if ours != theirs:
            return f"it was made for {what.format(ours)}, the target has {theirs}"
    return None
