"""Local speakers, heard by segmentation-3.0 in a recording of any length; pieces of one voice each in what
they say; and from the speakers of pieces to turns.

The network (pyannote's `PyanNet`; Bredin 2023, "pyannote.audio 2.1 speaker diarization pipeline"; powerset
training: Plaquet and Bredin 2023, arXiv 2310.13025) reads 10 s at a time and tells up to three speakers
apart, two at once. Chunks overlap by half. The local speakers of neighbouring chunks are matched where they
overlap, and their probabilities are blended, the middle of a chunk more than its ends. So a slot is one
person for as long as that person is heard every few seconds; whether two slots, or a slot at two times, are
the same person is for the clustering.

The segmentation tells people apart who speak at once, but merges similar voices that follow each other
quickly, and bridges pauses. The level of the signal shows pauses: where it stands out from the noise,
speech is what is loud, and what the segmentation takes for one speaker is cut at every pause of 80 ms, and
every two seconds. Such pieces hold one voice (of mixtures of readers 0.5 % of the time is another's, of
uncut speech 6 %), from which their speakers are found; a piece too short for that goes with its neighbours.

Shapes: T samples, C chunks, frames of the network (16.875 ms), F frames of 10 ms, P = 7 sets of speakers,
3 slots (local speakers), N pieces, K speakers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from ..diarizer import Samples
from ..turns import Turns
from .clustering import Flags, Labels
from .voice_encoder import HOP, frame_power, read_weights

NAME = "segmentation.safetensors.xz"
"""The file of weights in a folder."""

CHUNK = 10 * SAMPLE_RATE
"""Samples the network was trained on."""

STEP = CHUNK // 2
"""Samples between chunks. Half of it takes twice the time."""

SLOTS = 3
"""Speakers of a chunk at most."""

SETS: tuple[frozenset[int], ...] = tuple(
    frozenset(members) for members in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
)
"""The speakers of each class of the network."""

MEMBERS = np.array([[slot in members for slot in range(SLOTS)] for members in SETS], np.float32)
"""[P, 3]: probabilities of sets @ MEMBERS are those of slots."""

BATCH = 8
"""Chunks. On CPUs more are slower, as their activations leave the caches."""

Probabilities = NDArray[np.float32]

FRAMES_PER_S = 100

MEMORY = 5 * FRAMES_PER_S
"""Frames after which a slot may be another person: half a chunk of the segmentation."""

DIGITAL_DB = -100.0
"""Digital zeros, which say nothing about the noise of a room."""


STRIDE = 10
"""Samples between the filters' outputs."""

FRAME_S = STRIDE * 3**3 / SAMPLE_RATE
"""From frame to frame: three times the largest of three."""

CENTRE_S = (250 + STRIDE * (2 + 3 * (4 + 2) + 9 * (4 + 2)) + 1) / 2 / SAMPLE_RATE
"""Of what the first frame hears."""

HZ, KERNEL = 50, 251
"""The lowest frequency of a filter, which is the least width of its band too; samples of a filter."""


class Network(nn.Module):
    """Band-pass filters whose bands were trained (SincNet; Ravanelli and Bengio 2018, arXiv 1808.00158), two
    convolutions, recurrent layers in both directions, and three linear ones. Its modules are named as
    PyanNet's, and it computes the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        filters = nn.Conv1d(1, 80, KERNEL, stride=STRIDE, bias=False)
        convolutions = [filters, nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)]
        self.sincnet = nn.ModuleDict(
            {
                "wav_norm1d": nn.InstanceNorm1d(1, affine=True),
                "conv1d": nn.ModuleList(convolutions),
                "norm1d": nn.ModuleList(nn.InstanceNorm1d(n, affine=True) for n in (80, 60, 60)),
            }
        )
        self.lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
        self.linear = nn.ModuleList([nn.Linear(256, 128), nn.Linear(128, 128)])
        self.classifier = nn.Linear(128, len(SETS))

    def forward(self, samples: Tensor) -> Tensor:
        """`[C, 1, T]` samples -> `[C, N, 7]` log-probabilities."""
        x = self.sincnet["wav_norm1d"](samples)
        layers = zip(self.sincnet["conv1d"], self.sincnet["norm1d"], strict=True)  # type: ignore[call-overload]
        for number, (convolution, norm) in enumerate(layers):
            x = convolution(x) if number else convolution(x).abs()
            x = functional.leaky_relu(norm(functional.max_pool1d(x, 3)))
        x, _ = self.lstm(x.transpose(1, 2))
        for layer in self.linear:
            x = functional.leaky_relu(layer(x))
        return functional.log_softmax(self.classifier(x), -1)


def band_pass(low: Tensor, band: Tensor, window: Tensor, times: Tensor) -> Tensor:
    """The filters `[2 M, 1, K]` of M bands: their cosines, then their sines. `low [M, 1]` and `band [M, 1]`
    are in Hz, over the least of each; `window [K // 2]` and `times [1, K // 2]` in radians per Hz are of the
    half before the middle, which the other half mirrors."""
    low = HZ + low.abs()
    high = (low + HZ + band.abs()).clamp(HZ, SAMPLE_RATE / 2)
    width, below, above = 2 * (high - low), low @ times, high @ times
    even = (above.sin() - below.sin()) / (times / 2) * window
    odd = (below.cos() - above.cos()) / (times / 2) * window
    cosines = torch.cat([even, width, even.flip(1)], 1) / width
    sines = torch.cat([odd, torch.zeros_like(width), -odd.flip(1)], 1) / width
    return torch.cat([cosines, sines])[:, None]


class Segmentation:
    """The network on one device."""

    def __init__(
        self, network: Callable[[Tensor], Tensor], device: torch.device | str = "cpu"
    ) -> None:
        self.network, self.device = network, torch.device(device)

    @torch.inference_mode()
    def probabilities(
        self, samples: Samples, report: Callable[[float], None] = lambda done: None
    ) -> Probabilities:
        """`[T]` samples -> `[T // 160, 7]`: which speakers speak in each frame of 10 ms, see SETS.
        `report` gets the share that is done."""
        starts = range(0, max(1, len(samples) - CHUNK + STEP), STEP)
        blend = _Blend(starts[-1] + CHUNK, FRAME_S)
        for first in range(0, len(starts), BATCH):
            batch = starts[first : first + BATCH]
            chunks = np.zeros((len(batch), 1, CHUNK), np.float32)
            for row, start in zip(chunks, batch, strict=True):
                part = samples[start : start + CHUNK]
                row[0, : len(part)] = part
            logs = self.network(torch.from_numpy(chunks).to(self.device)).cpu().numpy()
            for start, chunk in zip(batch, np.exp(logs), strict=True):
                blend.add(start, chunk)
            report((first + len(batch)) / len(starts))
        frames = blend.frames()
        centres = (np.arange(len(samples) // HOP) + 0.5) * HOP / SAMPLE_RATE
        nearest = np.round((centres - CENTRE_S) / FRAME_S).astype(np.int64)
        return np.asarray(frames[np.clip(nearest, 0, len(frames) - 1)], np.float32)


class _Blend:
    """Chunks `[N, 7]` on one line of time, their slots in the order of the chunks before."""

    def __init__(self, sample_count: int, step_s: float) -> None:
        self._step = step_s * SAMPLE_RATE
        count = int(np.ceil(sample_count / self._step)) + 1
        self._sum = np.zeros((count, len(SETS)), np.float32)
        self._weight = np.zeros((count, 1), np.float32)
        self._last: Probabilities | None = None  # of the chunk before
        self._at = self._end = 0

    def add(self, start: int, chunk: Probabilities) -> None:
        """Add the chunk that begins at sample `start`; chunks come in order."""
        at, count = round(start / self._step), len(chunk)
        shared = 0 if self._last is None else min(count, self._at + len(self._last) - at)
        if self._last is not None and shared > 0:
            offset = at - self._at
            before = self._last[offset : offset + shared] @ MEMBERS
            chunk = max(
                (chunk[:, order] for order in ORDERS),
                key=lambda some: float(np.minimum(before, some[:shared] @ MEMBERS).sum()),
            )
        # The ends of a chunk lack context on one side.
        ramp = np.minimum(np.arange(count) + 0.5, count - np.arange(count) - 0.5) / (count / 2)
        weight = np.square(ramp)[:, None].astype(np.float32)
        self._sum[at : at + count] += weight * chunk
        self._weight[at : at + count] += weight
        self._last, self._at, self._end = chunk, at, at + count

    def frames(self) -> Probabilities:
        """[N, 7]"""
        weight = np.maximum(self._weight[: self._end], np.float32(1e-9))
        return np.asarray(self._sum[: self._end] / weight, np.float32)


def _order(renamed: tuple[int, ...]) -> NDArray[np.int64]:
    """The columns of a chunk whose slot `k` becomes `renamed[k]`."""
    found = np.zeros(len(SETS), np.int64)
    for column, members in enumerate(SETS):
        found[SETS.index(frozenset(renamed[slot] for slot in members))] = column
    return found


ORDERS = [_order(renamed) for renamed in permutations(range(SLOTS))]


def load(folder: Path, device: torch.device | str = "cpu") -> Segmentation:
    """Load segmentation-3.0. Raises ModelError if the file is missing or damaged."""
    network, weights = Network(), read_weights(folder / NAME)
    parts = ("low_hz_", "band_hz_", "window_", "n_")
    try:
        bands = [weights.pop(f"sincnet.conv1d.0.filterbank.{part}") for part in parts]
        network.load_state_dict(weights | {"sincnet.conv1d.0.weight": band_pass(*bands)})
    except (KeyError, RuntimeError) as error:
        raise ModelError(f"other weights in {str(folder / NAME)!r}: {error}") from error
    return Segmentation(network.to(device).eval().requires_grad_(False), device)


@dataclass(frozen=True)
class PieceSettings:
    """Thresholds of speech; lengths are in frames of 10 ms. Chosen on mixtures of readers that trained
    nothing (docs/development/diarization-measurements.md)."""

    active: float = 0.42  # probability from which a local speaker speaks
    bridge: int = 15  # of a local speaker, pauses without anybody else
    cut: int = 8  # pauses at which pieces end
    longest: int = 200  # of a piece
    # speech by its level
    part: float = 0.3  # of the range from quiet to loud in dB; speech is above it
    contrast_db: float = 25.0  # between quiet and loud; with less, the segmentation decides alone
    unsure: float = 0.6  # probability of anybody's speech that it then takes
    quiet: float = 10.0  # percentile of the level around a stretch
    loud: float = 95.0  # percentile of the level in the stretch
    around: int = 400
    gap: int = 25  # stretches closer than this are treated as one
    # turns
    pause: int = 30  # of one speaker, bridged up to this length
    shortest: int = 5


SETTINGS = PieceSettings()


@dataclass(frozen=True)
class Run:
    """A local speaker without a longer pause, frames `start` to `end`."""

    slot: int
    start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """A part of a run in which nobody else speaks."""

    run: int
    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / FRAMES_PER_S


@dataclass(frozen=True, eq=False)
class Activity:
    """Who speaks when, before anybody is known."""

    slots: NDArray[np.float32]  # [F, 3] probability of each
    active: Flags  # [F, 3]
    speech: Flags  # [F] by level
    runs: tuple[Run, ...]  # by start
    pieces: tuple[Piece, ...] = ()  # by start


def find_pieces(samples: Samples, probabilities: Probabilities) -> Activity:
    """[T] samples and [F, 7] probabilities of sets of local speakers -> runs and pieces."""
    slots = probabilities @ MEMBERS
    active = slots > SETTINGS.active
    speech = _speech(
        10 * np.log10(frame_power(samples) + 1e-12),
        1 - probabilities[:, 0],
        np.asarray(active.any(1)),
    )
    before = _count_before(active)
    runs = [
        Run(slot, *span)
        for slot in range(SLOTS)
        for span in _bridged(active[:, slot], before, SETTINGS.bridge)
    ]
    runs.sort(key=attrgetter("start", "end"))
    loud = speech.copy()
    for start, end in stretches(~speech):
        if end - start < SETTINGS.cut:
            loud[start:end] = True
    alone = loud & (active.sum(1) == 1)
    pieces: list[Piece] = []
    for number, run in enumerate(runs):
        own = alone & active[:, run.slot]
        for first, last in stretches(own[run.start : run.end]):
            count = -(-(last - first) // SETTINGS.longest)
            edges = np.linspace(run.start + first, run.start + last, count + 1).round().astype(int)
            pieces += [Piece(number, start, end) for start, end in pairwise(edges.tolist())]
    pieces.sort(key=attrgetter("start", "end"))
    return Activity(slots, active, speech, tuple(runs), tuple(pieces))


_Turn = tuple[int, int, str, float]
"""Start and end in samples, speaker, confidence."""


def turns_of(
    activity: Activity, labels: Labels, confidence: NDArray[np.float64]
) -> tuple[Turns, Turns]:
    """[N] speakers of pieces and [N] confidence -> (turns that may overlap, turns of the most probable
    speaker). A turn has the mean confidence of its frames."""
    if not len(labels):
        return Turns(), Turns()
    nearest = _nearest_pieces(activity)
    owners = np.where(nearest >= 0, labels[nearest], -1)
    heard = activity.active & activity.speech[:, None] & (owners >= 0)  # [F, 3]
    strongest = np.where(heard, activity.slots, -1.0).argmax(1)
    alone = np.where(heard.any(1), owners[np.arange(len(owners)), strongest], -1)
    several, single = _count_before(heard), _count_before((alone >= 0)[:, None])
    regular, exclusive = list[_Turn](), list[_Turn]()
    for speaker in range(int(labels.max()) + 1):
        own = heard & (owners == speaker)
        sure = np.zeros(len(own))
        for slot in range(SLOTS):
            frames = own[:, slot]
            sure[frames] = confidence[nearest[frames, slot]]
        regular += _turns(str(speaker), own.any(1), several, sure)
        exclusive += _turns(str(speaker), alone == speaker, single, sure)
    return Turns.of(regular), Turns.of(exclusive)


def _nearest_pieces(activity: Activity) -> Labels:
    """[F, 3] the piece that each slot belongs to in its runs, -1 elsewhere: the nearest one of the run. A run
    without a piece, as only others speak at the same time, has that of the nearest run in its slot."""
    owners = np.full(activity.active.shape, -1)
    by_run: dict[int, list[int]] = {}
    for n, piece in enumerate(activity.pieces):
        by_run.setdefault(piece.run, []).append(n)
    by_slot: dict[int, list[tuple[Run, int, int]]] = {}
    for number, own in by_run.items():
        run, pieces = activity.runs[number], activity.pieces
        middles = [(pieces[one].end + pieces[next_].start) / 2 for one, next_ in pairwise(own)]
        nearest = np.searchsorted(middles, np.arange(run.start, run.end), side="right")
        owners[run.start : run.end, run.slot] = np.array(own)[nearest]
        by_slot.setdefault(run.slot, []).append((run, own[0], own[-1]))
    for number, run in enumerate(activity.runs):
        if number in by_run:
            continue
        near = [
            (distance, piece)
            for other, first, last in by_slot.get(run.slot, [])
            for distance, piece in ((run.start - other.end, last), (other.start - run.end, first))
            if 0 <= distance <= MEMORY
        ]
        if near:
            owners[run.start : run.end, run.slot] = min(near)[1]
    return owners


def _turns(
    speaker: str, spoken: Flags, before: Labels, sure: NDArray[np.float64]
) -> Iterator[_Turn]:
    """[F] speech of a speaker and its confidence -> turns, short pauses bridged where nobody else speaks."""
    for start, end in _bridged(spoken, before, SETTINGS.pause):
        if end - start >= SETTINGS.shortest:
            confidence = float(sure[start:end][spoken[start:end]].mean())
            yield start * HOP, end * HOP, speaker, confidence


def _count_before(active: Flags) -> Labels:
    """[F, C] -> [F + 1] frames before each one in which somebody is active."""
    return np.concatenate([[0], np.cumsum(active.any(1))])


def _bridged(active: Flags, before: Labels, longest: int) -> list[tuple[int, int]]:
    """[F] -> its stretches, gaps of up to `longest` frames bridged where nobody is active: `before` [F + 1]
    counts the frames where somebody is."""
    found: list[tuple[int, int]] = []
    for start, end in stretches(active):
        last = found[-1] if found else None
        if last and start - last[1] <= longest and before[start] == before[last[1]]:
            found[-1] = last[0], end
        else:
            found.append((start, end))
    return found


def _speech(level: NDArray[np.float64], heard: NDArray[np.float32], active: Flags) -> Flags:
    """[F] level, probability of speech and activity -> [F] speech."""
    found = np.zeros(len(level), bool)
    spans = np.array(list(stretches(active)), np.int64).reshape(-1, 2)
    if not len(spans):
        return found
    gaps = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > SETTINGS.gap) + 1
    for near in np.split(spans, gaps):
        start, end = int(near[0, 0]), int(near[-1, 1])
        if end - start < SETTINGS.shortest:
            continue
        surroundings = level[max(0, start - SETTINGS.around) : end + SETTINGS.around]
        surroundings = surroundings[surroundings > DIGITAL_DB]
        if not len(surroundings):
            continue
        quiet = float(np.percentile(surroundings, SETTINGS.quiet))
        loud = float(np.percentile(level[start:end], SETTINGS.loud))
        if loud - quiet < SETTINGS.contrast_db:
            found[start:end] |= heard[start:end] > SETTINGS.unsure
            continue
        found[start:end] |= level[start:end] > quiet + SETTINGS.part * (loud - quiet)
    return found


def stretches(flags: Flags) -> Iterator[tuple[int, int]]:
    """[F] -> (start, end) of stretches that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
