"""Figures of the walkthrough, so that its cells hold only what is instructive.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish, and no information
is carried by colour alone. Every function returns its figure. Knows nothing of models.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray

if TYPE_CHECKING:
    from IPython.display import Audio

    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.formats.transcript_parts import Word
    from forescribe.asr.segment.windows import Window
    from forescribe.speculative.requests import Stats

RATE = 16_000
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
WIDE = (9.5, 3.2)
"""Inches; readable at 100 % in the column of a page."""


def style() -> None:
    """Set the sizes and colours of all figures."""
    # Libraries that draw progress bars ask for ipywidgets; the notebook shows none.
    warnings.filterwarnings("ignore", message="IProgress not found")
    pyplot.rcParams.update(
        {
            "figure.figsize": WIDE,
            "figure.dpi": 90,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": pyplot.cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PURPLE]),
        }
    )


def player(samples: NDArray[np.float32]) -> Audio:
    """Return an audio player that embeds the samples, as MP3 to keep the notebook small."""
    import soundfile
    from IPython.display import Audio

    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="MP3")
    return Audio(data=file.getvalue(), rate=None)


# -- input of the model ----------------------------------------------------------------------------


def waveform(
    samples: NDArray[np.float32], speech: NDArray[np.float32], windows: Sequence[Window]
) -> Figure:
    """Plot the waveform with its windows, and the probability `speech [frames of 32 ms]` below it."""
    figure, (wave, activity) = pyplot.subplots(
        2, sharex=True, figsize=(WIDE[0], 3.8), height_ratios=(3, 2)
    )
    low, high, times = _envelope(samples)
    wave.fill_between(times, low, high, color=BLUE, linewidth=0)
    wave.set_ylabel("amplitude\n(full scale = 1)")
    activity.plot(np.arange(len(speech)) * 0.032, speech, color=BLUE, linewidth=1)
    activity.set(xlabel="time (s)", ylabel="probability\nof speech", ylim=(0, 1.05))
    for window in windows:
        start, end = window.start / RATE, window.end / RATE
        for axes in (wave, activity):
            axes.axvline(end, color="black", linewidth=0.8, linestyle="--")
            if not window.speech:
                axes.axvspan(start, end, facecolor="none", edgecolor=GREY, hatch="//", linewidth=0)
        if window.length < 0.1 * len(samples):
            continue  # too short for its label
        label = f"window {window.index}" if window.speech else "silence, skipped"
        # Above the axes, as it would not be readable over the waveform.
        place = wave.get_xaxis_transform()
        wave.text((start + end) / 2, 1.02, label, transform=place, ha="center", va="bottom")
    wave.set_xlim(0, len(samples) / RATE)
    return figure


def _envelope(
    samples: NDArray[np.float32], points: int = 1500
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
    """Minimum and maximum of `points` intervals, and their times in seconds."""
    edges = np.linspace(0, len(samples), min(points, len(samples)) + 1).astype(int)
    parts = edges[:-1]
    low, high = np.minimum.reduceat(samples, parts), np.maximum.reduceat(samples, parts)
    return low, high, (edges[:-1] + edges[1:]) / 2 / RATE


def log_mel(mel: NDArray[np.float32], sound_s: float) -> Figure:
    """Plot the features `[bands, frames]` of one window; after `sound_s` they are padding."""
    import librosa

    figure, axes = pyplot.subplots()
    bands, frames = mel.shape
    levels = pyplot.get_cmap("cividis", 10)  # few colours, for a small file
    image = axes.imshow(
        mel, origin="lower", aspect="auto", extent=(0, frames / 100, 0, bands), cmap=levels
    )
    hertz = (0, 500, 1000, 2000, 4000, 8000)
    centres = librosa.mel_frequencies(n_mels=bands, fmin=0, fmax=RATE / 2)
    axes.set_yticks(np.interp(hertz, centres, np.arange(bands) + 0.5), [f"{h:,}" for h in hertz])
    axes.set(xlabel="time (s)", ylabel=f"frequency (Hz), {bands} mel bands")
    if sound_s < frames / 100:
        axes.axvline(sound_s, color="white", linestyle="--", linewidth=1)
        axes.text(sound_s, bands * 0.97, " padding", color="white", va="top")
    figure.colorbar(image, label="log10 power,\nshifted and scaled", pad=0.01)
    return figure


# -- rounds ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One round of one row: the drafted tokens as text, how many were accepted, and the target's own
    token."""

    drafts: tuple[str, ...]
    kept: int
    extra: str

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Every token with its kind, in the order of the figure."""
        drafts = [
            (t, "accepted" if i < self.kept else "rejected") for i, t in enumerate(self.drafts)
        ]
        full = self.kept == len(self.drafts)
        return [*drafts, (self.extra, "bonus" if full else "correction")]


STYLES: Mapping[str, tuple[str, str, str]] = {
    # kind: background, edge, prefix (for readers who do not see the colours)
    "accepted": ("#BFE6D9", GREEN, ""),
    "rejected": ("#F4CDB0", VERMILION, "×"),
    "correction": ("#FBE3AE", ORANGE, "→"),
    "bonus": ("#CBE6F7", BLUE, "+"),
}


def rounds(history: Sequence[Round]) -> Figure:
    """Draw one line of boxes per round: the drafted tokens, then the token that the target added."""
    lines: list[tuple[str, list[tuple[str, str]]]] = [("", [(kind, kind) for kind in STYLES])]
    lines += [(f"round {n}", one.kinds) for n, one in enumerate(history, start=1)]
    # No layout engine, as there are no axes to make room for. All positions are inches.
    longest = max(sum(_width(*token) for token in tokens) for _, tokens in lines)
    size = (0.95 + longest, 0.33 * len(lines) + 0.1)
    figure = pyplot.figure(figsize=size, layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size[0]), ylim=(len(lines) - 0.4, -0.6))
    axes.axis("off")
    for y, (label, tokens) in enumerate(lines):
        axes.text(0.8, y, label, ha="right", va="center")
        x = 0.95
        for token, kind in tokens:
            face, edge, mark = STYLES[kind]
            box = {"boxstyle": "round,pad=0.25", "facecolor": face, "edgecolor": edge}
            text = mark + visible(token)
            axes.text(x, y, text, family="monospace", fontsize=10, va="center", bbox=box)
            x += _width(token, kind)
    return figure


def _width(token: str, kind: str) -> float:
    """Inches between the start of a token's box and that of the next."""
    return 0.09 * len(STYLES[kind][2] + visible(token)) + 0.14


def visible(token: str) -> str:
    """The text of a token with visible spaces."""
    return token.replace(" ", "·").replace("\n", "\\n") or "''"


# -- gain from drafting ----------------------------------------------------------------------------


def survival(stats: Stats) -> float:
    """The probability that a draft is accepted if all before it were: accepted over judged drafts.

    A draft is judged unless one before it in its round was rejected. Rows that drafted fewer tokens
    than others, near their end, are counted slightly too often. Raises ValueError if nothing was
    drafted.
    """
    drafted, accepted = stats.drafted_at_depth, stats.accepted_at_depth
    judged = sum(
        min(d, before) for d, before in zip(drafted, (drafted[:1] + accepted), strict=False)
    )
    if not judged:
        raise ValueError("nothing was drafted, so there is no acceptance rate")
    return sum(accepted) / judged


def tokens_per_round(alpha: float, gamma: NDArray[np.float64]) -> NDArray[np.float64]:
    """(1 - alpha^(gamma + 1)) / (1 - alpha), Leviathan et al. 2023, equation 1; alpha below 1."""
    grown: NDArray[np.float64] = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return grown


def acceptance(measured: Mapping[int, Stats]) -> Figure:
    """Plot acceptance by depth at the longest gamma (left) and tokens per round by gamma (right)."""
    longest = measured[max(measured)]
    alpha = survival(longest)
    figure, (left, right) = pyplot.subplots(1, 2)
    depth = np.arange(1, len(longest.acceptance_at_depth) + 1)
    left.bar(depth, longest.acceptance_at_depth, color=SKY, label="measured")
    left.plot(depth, alpha**depth, "k--", marker="o", markersize=3, label=f"{alpha:.2f}^depth")
    left.set(xlabel="depth of the draft (tokens)", ylabel="share accepted", ylim=(0, 1))
    gammas = sorted(measured)
    curve = np.linspace(0, max(gammas), 100)
    right.plot(curve, tokens_per_round(alpha, curve), "k--", label=f"formula, a = {alpha:.2f}")
    lengths = [measured[gamma].mean_acceptance_length for gamma in gammas]
    right.plot(gammas, lengths, "o", color=BLUE, markersize=7, label="measured")
    right.set(xlabel="gamma (drafted tokens per round)", ylabel="tokens per round", ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
    return figure


def speed(speeds: Mapping[int, Mapping[int, float]]) -> Figure:
    """Plot `speeds[gamma][batch]` in tokens per second over the batch size, one line per gamma."""
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    looks = zip(((GREY, "o", "--"), (BLUE, "s", "-"), (VERMILION, "^", "-.")), speeds, strict=False)
    for (colour, marker, line), gamma in looks:
        batches = sorted(speeds[gamma])
        label = f"gamma {gamma}" + (" (plain decoding)" if gamma == 0 else "")
        values = [speeds[gamma][batch] for batch in batches]
        axes.plot(batches, values, line, color=colour, marker=marker, label=label)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(batches))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlabel="batch (windows decoded together)", ylabel="tokens per second", ylim=(0, None))
    axes.legend(frameon=False)
    return figure


# -- speakers --------------------------------------------------------------------------------------


def timeline(transcript: Transcript, until_s: float = 24, line_s: float = 8) -> Figure:
    """Plot words at their times, with a lane for each speaker, in lines of `line_s` seconds."""
    words = [w for s in transcript.segments for w in s.words or () if w.start < until_s]
    speakers = list(dict.fromkeys(word.speaker for word in words))
    colours = dict(zip(speakers, (SKY, ORANGE, GREEN, PURPLE, YELLOW) * 9, strict=False))
    count = max(1, int(np.ceil(until_s / line_s)))
    figure, lines = pyplot.subplots(count, squeeze=False, figsize=(WIDE[0], 1.05 * count + 0.4))
    for number, axes in enumerate(lines[:, 0]):
        start = number * line_s
        axes.set(xlim=(start, start + line_s), ylim=(len(speakers) - 0.45, -0.55))
        for lane, speaker in enumerate(speakers):
            own = [w for w in words if w.speaker == speaker and start <= w.start < start + line_s]
            _lane(axes, own, lane, colours[speaker])
        axes.set_yticks(range(len(speakers)), [speaker or "unknown" for speaker in speakers])
        axes.tick_params(axis="y", length=0)
    lines[-1, 0].set_xlabel("time (s)")
    return figure


def _lane(axes: Axes, words: Sequence[Word], lane: int, colour: str) -> None:
    start, end = axes.get_xlim()
    letter = (end - start) / 130  # width of a letter of 8 points, in seconds
    free = {"bottom": start, "top": start}  # end of the texts above and below the bar
    for word in words:
        length = word.end - word.start
        axes.barh(lane, length, left=word.start, height=0.16, color=colour, edgecolor="white")
        text = word.text.strip()
        # Above or below the bar, where there is room, as short words are close together.
        side = min(free, key=lambda side: (free[side] > word.start, free[side]))
        free[side] = word.start + letter * (len(text) + 1)
        last = free[side] > end  # the text would leave the figure
        place, towards = (end, "right") if last else (word.start, "left")
        shift = -0.12 if side == "bottom" else 0.12
        axes.text(place, lane + shift, text, fontsize=8, va=side, ha=towards)
