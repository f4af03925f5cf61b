"""Word times from libflite.

The tokens of an utterance, separated by spaces, contain words, these syllables and these phones, and a
phone has an end time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_short, c_void_p
from typing import Any

import numpy as np

from training.speech.synthesizer_library import Sound, library
from training.speech.voices import Voice

PACKAGE = "libflite1"


class _FliteVoice(Structure):
    _fields_ = [("name", c_char_p), ("features", c_void_p)]


class _FliteWave(Structure):
    _fields_ = [
        ("type", c_char_p),
        ("rate", c_int),
        ("count", c_int),
        ("channels", c_int),
        ("samples", POINTER(c_short)),
    ]


class Flite:
    """The library with its voices."""

    def __init__(self) -> None:
        self.library = library("libflite.so.1", PACKAGE)
        self.library.flite_init()
        self.voices: dict[str, int] = {}

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a C function; strings and floats are converted, everything else is an address."""
        kinds: dict[type, Any] = {bytes: c_char_p, float: c_float}
        function = self.library[name]
        function.restype = result
        function.argtypes = [kinds.get(type(a), c_void_p) for a in arguments]
        return function(*arguments)

    def voice(self, name: str) -> int:
        if name not in self.voices:
            voices = library(f"libflite_cmu_us_{name}.so.1", PACKAGE)
            register = voices[f"register_cmu_us_{name}"]
            register.restype, register.argtypes = c_void_p, [c_void_p]
            self.voices[name] = register(None)
        return self.voices[name]

    def say(self, text: str, voice: Voice) -> Sound:
        address = self.voice(voice.name)
        features = ctypes.cast(address, POINTER(_FliteVoice)).contents.features
        self.call("flite_feat_set_float", None, features, b"duration_stretch", voice.speed)
        self.call("flite_feat_set_float", None, features, b"int_f0_target_mean", voice.pitch)
        utterance = self.call("flite_synth_text", c_void_p, text.encode(), address)
        try:
            wave = ctypes.cast(
                self.call("utt_wave", c_void_p, utterance), POINTER(_FliteWave)
            ).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.count,)).copy()
            relation = self.call("utt_relation", c_void_p, utterance, b"Token")
            spans = [self.span(token) for token in self.items(relation, "relation_head")]
            heard = [span for span in spans if span is not None]
            starts, ends = [span[0] for span in heard], [span[1] for span in heard]
            return Sound(samples, wave.rate, list(starts), list(ends))
        finally:
            self.call("delete_utterance", None, utterance)

    def items(self, parent: int, first: str = "item_daughter") -> Iterator[int]:
        item = self.call(first, c_void_p, parent)
        while item:
            yield item
            item = self.call("item_next", c_void_p, item)

    def span(self, token: int) -> tuple[float, float] | None:
        """Start and end in seconds; None for a token of punctuation only."""
        phones: list[int] = []
        for word in self.items(token):
            tree = self.call("item_as", c_void_p, word, b"SylStructure")
            for syllable in self.items(tree) if tree else ():
                phones += list(self.items(syllable))
        if not phones:
            return None
        start = self.call("flite_ffeature_float", c_float, phones[0], b"R:Segment.p.end")
        return start, self.call("flite_ffeature_float", c_float, phones[-1], b"end")
