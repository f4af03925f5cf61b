"""Conversations of readers under the conditions in which diarization fails: many voices, quick turns, short
answers, crosstalk, noise, telephone, rooms, one voice alone.

One clip per reader is all there is, so that in most recordings everything is said several times; in those
of `fresh` nothing is said twice. The reference turns are those of the clean clips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.signal import fftconvolve

from forescribe.asr.audio.reading import read_audio

from ..speech.channels import CHANNELS
from ..speech.rooms import impulse_response, pink
from .folds import FOLDS, fold_of, split
from .mixtures import CALM, Manner, Mixture, Samples, mix, once, usable
from .vectors import clips, speaker_of

Clips = Mapping[str, Samples]

LEVEL = 0.05
"""Root mean square of each clip, so that no reader is louder than another."""

NOISE_DB = 10.0

QUICK = Manner(turn=(0.35, 1.0), pause=(0.05, 0.4))
SHORT_ANSWERS = Manner(turn=(4.0, 8.0), listener=(0.4, 1.0), pause=(0.1, 0.6))
CROSSTALK = Manner(overlapping=0.5, early=(0.5, 2.0))


def readers(data: Path, group: str) -> dict[str, Samples]:
    """The clips of `tuning`, `test` or `fold0` to `fold2` of the training readers, by reader."""
    paths = {speaker_of(path): path for path in clips(data / "speakers")}
    groups = split(sorted(paths))
    if group.startswith("fold"):
        chosen = [s for s in groups.training if fold_of(s) == int(group.removeprefix("fold"))]
    else:
        chosen = list(getattr(groups, group))
    voices = {str(speaker): read_audio(paths[speaker]) for speaker in sorted(chosen)}
    return {
        who: clip * np.float32(LEVEL / np.sqrt(np.mean(clip**2)))
        for who, clip in voices.items()
        if usable(clip)
    }


GROUPS = ("tuning", "test", *(f"fold{fold}" for fold in range(FOLDS)))


def conditions(voices: Clips, seed: int) -> Iterator[tuple[str, list[Mixture]]]:
    """Recordings by condition; equal seeds make equal recordings."""
    rng = np.random.default_rng(seed)
    for name, make in MAKERS.items():
        yield (
            name,
            [replace(mixture, name=f"{name}-{mixture.name}") for mixture in make(voices, rng)],
        )


def _some(voices: Clips, number: int, rng: np.random.Generator) -> dict[str, Samples]:
    return {who: voices[who] for who in rng.choice(sorted(voices), number, replace=False).tolist()}


def _conversations(
    voices: Clips, rng: np.random.Generator, counts: tuple[int, ...], manner: Manner = CALM
) -> list[Mixture]:
    return [
        mix(f"{number}-{many}", _some(voices, many, rng), rng, manner=manner)
        for number, many in enumerate(counts)
    ]


def _many(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    return [
        mix(f"{number}-{many}", _some(voices, many, rng), rng, seconds=60 + 30 * many)
        for number, many in enumerate((2, 2, 3, 3, 4, 4, 5, 6, 7, 8))
    ]


def with_noise(mixture: Mixture, noise: Samples, decibels: float = NOISE_DB) -> Mixture:
    """Add noise of power 1, so many decibels below the speech."""
    spoken = np.zeros(len(mixture.samples), bool)
    for turn in mixture.turns:
        spoken[turn.start_sample : turn.end_sample] = True
    level = np.sqrt(np.mean(mixture.samples[spoken] ** 2)) * 10 ** (-decibels / 20)
    mixed = np.clip(mixture.samples + np.float32(level) * noise, -1, 1)
    return replace(mixture, samples=np.asarray(mixed, np.float32))


def _noise(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    found = []
    for number, mixture in enumerate(_conversations(voices, rng, (2, 3, 4, 5, 2, 3))):
        length = len(mixture.samples)
        white = rng.standard_normal(length).astype(np.float32)
        found.append(with_noise(mixture, pink(length, rng) if number % 3 else white))
    return found


def _half_noisy(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    found = []
    for mixture in _conversations(voices, rng, (2, 3, 2, 3)):
        noise = pink(len(mixture.samples), rng)
        noise[: len(noise) // 2] = 0
        found.append(with_noise(mixture, noise))
    return found


def _telephone(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    calls = [
        mix(f"{n}", _some(voices, 2 + n % 2, rng), rng, seconds=60 + 30 * (n % 3)) for n in range(6)
    ]
    return [replace(c, samples=CHANNELS["telephone"](c.samples, rng)) for c in calls]


def _room(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    """Each at a place of their own, and pink noise 20 dB below."""
    found = []
    for number in range(6):
        who = _some(voices, 2 + number % 4, rng)
        decay, size = rng.uniform(0.3, 0.8), rng.uniform((4, 3.5, 2.5), (9, 7, 3.5))
        microphone = rng.uniform(0.4, 0.6, 3) * size
        responses = {w: impulse_response(rng, decay, size, microphone) for w in who}
        mixture = mix(f"{number}", who, rng, responses=responses)
        found.append(with_noise(mixture, pink(len(mixture.samples), rng), 20))
    return found


def through(mixture: Mixture, channel: str, rng: np.random.Generator) -> Mixture:
    """A channel by name: clean, telephone, room or noise."""
    if channel == "noise":
        return with_noise(mixture, pink(len(mixture.samples), rng))
    if channel == "room":
        size = rng.uniform((4, 3.5, 2.5), (9, 7, 3.5))
        response = impulse_response(rng, rng.uniform(0.3, 0.7), size)
        heard = fftconvolve(mixture.samples, response)[: len(mixture.samples)]
    else:
        heard = CHANNELS[channel](mixture.samples, rng)
    return replace(mixture, samples=np.asarray(heard, np.float32))


def _alone(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    found = []
    plan = (
        ("clean", 40),
        ("telephone", 60),
        ("room", 60),
        ("noise", 60),
        ("clean", 120),
        ("room", 120),
    )
    for channel, seconds in plan:
        mixture = mix(f"{channel}-{seconds}", _some(voices, 1, rng), rng, seconds=seconds)
        found.append(through(mixture, channel, rng))
    return found


def _fresh(voices: Clips, rng: np.random.Generator) -> list[Mixture]:
    found = []
    for number, channel in enumerate(("clean", "telephone", "room", "clean", "noise", "room") * 2):
        mixture = once(f"{number}-{channel}", _some(voices, 3 + number % 4, rng), rng)
        found.append(through(mixture, channel, rng))
    return found


MAKERS: Mapping[str, Callable[[Clips, np.random.Generator], list[Mixture]]] = {
    "readers": _many,
    "quick turns": lambda v, rng: _conversations(v, rng, (2, 3, 4, 2, 3, 4), QUICK),
    "short answers": lambda v, rng: _conversations(v, rng, (2, 3, 2, 3, 2, 3), SHORT_ANSWERS),
    "crosstalk": lambda v, rng: _conversations(v, rng, (2, 3, 4, 5, 2, 3), CROSSTALK),
    "noise 10 dB": _noise,
    "half noisy": _half_noisy,
    "telephone": _telephone,
    "room, 20 dB": _room,
    "one voice": _alone,
    "fresh": _fresh,
}
