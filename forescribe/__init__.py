"""Speech transcription with Whisper, made faster by lossless speculative decoding.

    from forescribe import transcribe

    print(transcribe("meeting.mp3").text)

The names are loaded on first use, as importing torch takes seconds. The parts are folders inside this one in
an installed package, and beside it in a checkout: there `forescribe.asr` is `asr/`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if not (Path(__file__).parent / "asr" / "__init__.py").is_file():  # a checkout
    __path__.append(str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    __version__: str
    from .asr.decode.options import Options as Options
    from .asr.decode.results import Progress as Progress
    from .asr.decode.transcriber import Transcriber as Transcriber
    from .asr.errors import ForescribeError as ForescribeError
    from .asr.formats.subtitles import LineRules as LineRules
    from .asr.formats.transcript import Transcript as Transcript
    from .asr.formats.transcript_parts import Segment as Segment
    from .asr.formats.transcript_parts import Word as Word
    from .text import TextGenerator as TextGenerator
    from .transcription import BatchError as BatchError
    from .transcription import align as align
    from .transcription import detect_language as detect_language
    from .transcription import find_speakers as find_speakers
    from .transcription import speech_segments as speech_segments
    from .transcription import transcribe as transcribe

_MODULES = {
    "BatchError": "transcription",
    "ForescribeError": "asr.errors",
    "LineRules": "asr.formats.subtitles",
    "Options": "asr.decode.options",
    "Progress": "asr.decode.results",
    "Segment": "asr.formats.transcript_parts",
    "TextGenerator": "text",
    "Transcriber": "asr.decode.transcriber",
    "Transcript": "asr.formats.transcript",
    "Word": "asr.formats.transcript_parts",
    "align": "transcription",
    "detect_language": "transcription",
    "find_speakers": "transcription",
    "speech_segments": "transcription",
    "transcribe": "transcription",
}
"""Where each public name is defined."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
