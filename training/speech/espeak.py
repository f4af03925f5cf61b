"""Word times from libespeak-ng.

Its events give positions in the text and in the audio; phonemes whose names start with an underscore are
pauses.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_short, c_void_p
from typing import Any

import numpy as np

from training.speech.synthesizer_library import Sound, library
from training.speech.voices import Voice


class _Event(Structure):
    _fields_ = [
        ("type", c_int),
        ("identifier", ctypes.c_uint),
        ("position", c_int),  # in the text, in characters from 1
        ("length", c_int),
        ("milliseconds", c_int),
        ("sample", c_int),
        ("user", c_void_p),
        ("name", c_char * 8),
    ]


class _EspeakVoice(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("languages", c_char_p),
        ("identifier", c_char_p),
        ("numbers", c_char * 4),  # gender, age, variant, unused
        ("score", c_int),
        ("spare", c_void_p),
    ]


_OnAudio = CFUNCTYPE(c_int, POINTER(c_short), c_int, POINTER(_Event))
SYNCHRONOUS, PHONEME_EVENTS, UTF8, BY_CHARACTER = 2, 1, 1, 1
LAST, WORD, PHONEME = 0, 1, 7
SPEED, PITCH = 1, 3


class Espeak:
    """The library, with a voice selected per call."""

    def __init__(self) -> None:
        self.library = library("libespeak-ng.so.1", "libespeak-ng1")
        self.rate = self.library.espeak_Initialize(SYNCHRONOUS, 0, None, PHONEME_EVENTS)
        if self.rate <= 0:
            raise OSError("libespeak-ng finds no data")
        self.callback = _OnAudio(self._collect)
        self.library.espeak_SetSynthCallback(self.callback)
        self.parts: list[np.ndarray] = []
        self.events: list[tuple[int, int, float, bool]] = []  # type, position, seconds, pause

    def _collect(self, wave: Any, count: int, events: Any) -> int:
        if wave and count:
            self.parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
        number = 0
        while (event := events[number]).type != LAST:
            pause = event.name.startswith(b"_")
            self.events.append((event.type, event.position, event.sample / self.rate, pause))
            number += 1
        return 0

    def select(self, name: str) -> None:
        """Select a voice by its file or, like the program, by its language ("en-gb+m4")."""
        if self.library.espeak_SetVoiceByName(name.encode()):
            wanted = _EspeakVoice(languages=name.encode())
            if self.library.espeak_SetVoiceByProperties(ctypes.byref(wanted)):
                raise ValueError(f"espeak-ng has no voice {name!r}")

    def say(self, text: str, voice: Voice) -> Sound:
        self.parts, self.events = [], []
        self.select(voice.name)
        self.library.espeak_SetParameter(SPEED, round(voice.speed), 0)
        self.library.espeak_SetParameter(PITCH, round(voice.pitch), 0)
        data = text.encode() + b"\0"
        size = ctypes.c_size_t(len(data))
        self.library.espeak_Synth(data, size, 0, BY_CHARACTER, 0, UTF8, None, None)
        self.library.espeak_Synchronize()
        starts, ends = self._times(text)
        return Sound(np.concatenate(self.parts), self.rate, starts, ends)

    def _times(self, text: str) -> tuple[list[float | None], list[float | None]]:
        """Starts and ends of the words. A word without an event ("the" of "of the") is spoken
        together with the previous one."""
        words = [m.span() for m in re.finditer(r"\S+", text) if re.search(r"\w", m[0])]
        starts: list[float | None] = [None] * len(words)
        ends: list[float | None] = [None] * len(words)
        at, pausing = None, True
        for kind, position, time, pause in self.events:
            if kind == WORD:
                if at is not None and not pausing:
                    ends[at] = time
                at = _at(words, position - 1)
                pausing = True  # no phoneme of it so far
                if at is not None and starts[at] is None:
                    starts[at] = time
            elif kind == PHONEME and at is not None:
                if pause and not pausing:
                    ends[at] = time
                pausing = pause
        for number in range(len(words) - 1):  # the last of joined words has the end
            if starts[number + 1] is None:
                ends[number], ends[number + 1] = None, ends[number]
        return starts, ends


def _at(words: list[tuple[int, int]], position: int) -> int | None:
    """The index of the word at a position of the text."""
    return next((n for n, (start, end) in enumerate(words) if start <= position < end), None)
