"""Transcription by lossless speculative decoding: Whisper-large, drafted by a distilled Whisper.

    from forescribe import transcribe

    print(transcribe("meeting.mp3").text)

The names load on first use, as importing torch takes seconds. The parts lie beside this folder in a
checkout and are reached through the links in it: `forescribe.asr` is `asr/`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if not (Path(__file__).parent / "asr").is_dir():  # a copy of a checkout that has lost its links
    __path__.append(str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from .asr.decode.options import Options
    from .asr.decode.transcriber import Transcriber
    from .asr.errors import ForescribeError
    from .asr.formats.transcript import Segment, Transcript, Word
    from .text import TextGenerator

_HOMES = {
    "ForescribeError": "asr.errors",
    "Options": "asr.decode.options",
    "Segment": "asr.formats.transcript",
    "TextGenerator": "text",
    "Transcriber": "asr.decode.transcriber",
    "Transcript": "asr.formats.transcript",
    "Word": "asr.formats.transcript",
}

__all__ = [
    "ForescribeError",
    "Options",
    "Segment",
    "TextGenerator",
    "Transcriber",
    "Transcript",
    "Word",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
