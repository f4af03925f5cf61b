"""When drafting pays: the formula with measured costs, compared with measured speed-ups.

    python -m benchmarks.speed.when_it_pays measure --json docs/methods/when-it-pays.json
    python -m benchmarks.speed.when_it_pays draw --json docs/methods/when-it-pays.json      # writes the .svg

Measures both bundled pairs at every draft length and batch size, on the engines that `auto` chooses:
tokens per round, and the time of drafting and scoring in a round. These give alpha and the costs, which
determine the curves; the points are the speed-up of the whole decoding over gamma 0. With one thread CPU
time is measured, so that other load hardly matters; with more it is wall time, which needs an idle machine.
Prefill and audio encoder are not included, as they take the same time with and without drafts.

Exit status of `measure`: 0, or 1 if a token differs from plain decoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.speculative import Engine, Fixed, ModelDrafter, Request, Stats
from forescribe.speculative.device import Device, Stopwatch, choose
from forescribe.speculative.engine.schedule import expected_tokens
from forescribe.speculative.models import hub

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAMMAS = (0, 1, 2, 3, 4, 6, 8)
BATCHES = (1, 8)
ROUND = ("draft", "score", "accept")  # the stages of a round
FITTED_AT = 4  # alpha is fitted at this draft length; the others test the formula
QUESTIONS = (
    "Write the minutes of the sales meeting on March 3.",
    'Define "song".',
    'What does "narrow" mean?',
    "Write the minutes of the legal meeting on May 12.",
    'Use "quiet" in a sentence.',
    'Define "lantern".',
    "Write the minutes of the research meeting on October 9.",
    'What does "wander" mean?',
)
LONGEST = 128  # tokens of an answer

Written = dict[Hashable, tuple[int, ...]]
Decode = Callable[[int, int], tuple[Stats, Written]]
"""From batch size and gamma to statistics and tokens."""


@dataclass(frozen=True)
class Subject:
    """A pair that is measured, and which engine runs each model's forward."""

    decode: Decode
    target_engine: str
    draft_engine: str


HEAD = (
    "pair",
    "batch",
    "gamma",
    "tokens per round",
    "accepted",
    "draft ms",
    "score ms",
    "speed-up",
)


@dataclass(frozen=True)
class Point:
    """The result for one draft length; seconds per round are medians over the repeats."""

    pair: str
    batch: int
    gamma: int
    length: float  # mean acceptance length: tokens per round and row
    acceptance_rate: float
    draft_s: float
    score_s: float  # includes the acceptance rule
    token_s: float  # per token written


@dataclass(frozen=True)
class Prices:
    """The parameters of the formula; `draft` and `growth` are in plain rounds per drafted token.

    `draft` is the cost c of the papers. `growth` is the cost of scoring one more position; the papers
    assume 0, which holds where memory bandwidth limits a step.
    """

    alpha: float
    draft: float
    growth: float

    def speed_up(self, gamma: float) -> float:
        """Expected tokens per round over the cost of a round; `gamma` may be fractional, for plots."""
        alpha = min(self.alpha, 1 - 1e-9)
        tokens = (1 - alpha ** (gamma + 1)) / (1 - alpha)
        return float(tokens / (1 + gamma * (self.draft + self.growth)))


class OneThread(Device):
    """A device whose stopwatch measures CPU time, which excludes other processes."""

    def stopwatch(self) -> Stopwatch:
        return _CpuStopwatch(self)


class _CpuStopwatch(Stopwatch):
    def _now(self) -> float:
        return time.process_time()


def implied_alpha(length: float, gamma: int) -> float:
    """The alpha that gives `length` tokens per round: expected_tokens, solved by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < length else (low, middle)
    return low


def prices(points: Sequence[Point]) -> Prices:
    """Fit the costs of one pair at one batch size: least squares lines through gamma 0."""
    plain = next(p for p in points if p.gamma == 0)
    fitted = next(p for p in points if p.gamma == FITTED_AT)
    base = plain.draft_s + plain.score_s
    squares = sum(p.gamma**2 for p in points)

    def slope(extra: Callable[[Point], float]) -> float:
        return sum(p.gamma * extra(p) for p in points) / squares / base

    return Prices(
        alpha=implied_alpha(fitted.length, FITTED_AT),
        draft=slope(lambda p: p.draft_s),
        growth=slope(lambda p: p.score_s - base),
    )


def speed_ups(points: Sequence[Point]) -> dict[int, float]:
    """The measured speed-ups by gamma."""
    plain = next(p.token_s for p in points if p.gamma == 0)
    return {p.gamma: plain / p.token_s for p in points}


# -- measuring -------------------------------------------------------------------------------------


def text_pair(device: Device) -> Subject:
    from forescribe.text.language_model import load

    target, draft = (load(hub.path(name), device, network=False) for name in ("text", "text-draft"))
    prompts = [target.vocabulary.chat([{"role": "user", "content": q}]) for q in QUESTIONS]

    def decode(batch: int, gamma: int) -> tuple[Stats, Written]:
        engine = Engine(
            target.decoder(),
            ModelDrafter(draft.decoder()) if gamma else None,
            batch=batch,
            eos=target.ends,
            schedule=Fixed(gamma),
            device=device,
        )
        # Repeated, so that all rows are in use most of the time.
        work = [
            Request(p, max_new_tokens=LONGEST, tag=(turn, i))
            for turn in range(max(1, batch // 4))
            for i, p in enumerate(prompts)
        ]
        written: Written = {r.request.tag: r.tokens for r in engine.run(work)}
        return engine.stats, written

    return Subject(decode, target.engine, draft.engine)


def speech_pair(device: Device) -> Subject:
    from forescribe.asr.decode.transcriber import Options, Transcriber
    from forescribe.asr.model.loading import load
    from forescribe.asr.model.presets import resolve

    whisper = load(resolve("tiny.en", None), device)
    audio = [str(provenance.ROOT / "samples" / f"{n}.flac") for n in ("memo", "conversation")]

    def decode(batch: int, gamma: int) -> tuple[Stats, Written]:
        transcriber = Transcriber(whisper, batch=batch, gamma=gamma)
        written: Written = {}
        for outcome in transcriber.transcribe(
            audio, Options(language="en", keep_encoder_states=True)
        ):
            if outcome.error is not None:
                raise outcome.error
            written |= {(outcome.name, w.index): w.result.tokens for w in outcome.decoded}
        return transcriber.stats(), written

    return Subject(decode, whisper.engine, whisper.draft_engine)


PAIRS: Mapping[str, Callable[[Device], Subject]] = {"text": text_pair, "speech": speech_pair}


def point(pair: str, batch: int, gamma: int, repeats: Sequence[Stats]) -> Point:
    """Counts are equal in all repeats; times are medians."""
    stats = repeats[0]

    def per_round(*stages: str) -> float:
        return statistics.median(
            sum(s.seconds.get(stage, 0.0) for stage in stages) / s.rounds for s in repeats
        )

    return Point(
        pair=pair,
        batch=batch,
        gamma=gamma,
        length=stats.mean_acceptance_length,
        acceptance_rate=stats.acceptance_rate,
        draft_s=per_round("draft") if gamma else 0.0,
        score_s=per_round("score", "accept") + (0.0 if gamma else per_round("draft")),
        token_s=per_round(*ROUND) * stats.rounds / stats.emitted,
    )


def measure(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    device = choose("cpu")
    if options.threads == 1:
        device = OneThread(device.kind, device.dtype)
    points, engines, equal = [], {}, True
    for pair in options.pairs:
        subject = PAIRS[pair](device)
        decode = subject.decode
        engines[pair] = {"target": str(subject.target_engine), "draft": str(subject.draft_engine)}
        for batch in options.batch:
            found: dict[int, list[Stats]] = {gamma: [] for gamma in GAMMAS}
            _, plain = decode(batch, 0)  # warm-up: memory and kernels
            for _ in range(options.repeats):
                for gamma in GAMMAS:
                    stats, written = decode(batch, gamma)
                    equal = equal and written == plain
                    found[gamma].append(stats)
            points += [point(pair, batch, gamma, runs) for gamma, runs in found.items()]
    record = provenance.record("benchmarks.speed.when_it_pays") | {
        "clock": "processor" if options.threads == 1 else "wall",
        "threads": options.threads,
        "engines": engines,
        "equal": equal,
        "points": [asdict(p) for p in points],
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(table(points))
    for pair, names in engines.items():
        print(f"{pair}: engine {names['target']}, of the draft {names['draft']}")
    print("all tokens equal" if equal else "TOKENS DIFFER from plain decoding")
    return 0 if equal else 1


def grouped(points: Sequence[Point]) -> dict[tuple[str, int], list[Point]]:
    """Group points by pair and batch size."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for each in points:
        groups.setdefault((each.pair, each.batch), []).append(each)
    return groups


def table(points: Sequence[Point]) -> str:
    lines, notes = [HEAD], []
    for (pair, batch), group in grouped(points).items():
        gained, price = speed_ups(group), prices(group)
        for p in group:
            lines.append(
                (
                    pair,
                    str(batch),
                    str(p.gamma),
                    f"{p.length:.2f}",
                    f"{p.acceptance_rate:.3f}" if p.gamma else "",
                    f"{1000 * p.draft_s:.2f}",
                    f"{1000 * p.score_s:.2f}",
                    f"{gained[p.gamma]:.2f}",
                )
            )
        notes.append(
            f"{pair}, batch {batch}: alpha {price.alpha:.3f}, a drafted token costs "
            f"{price.draft:.3f} + {price.growth:.3f} plain rounds"
        )
    return "\n".join([*layout(lines), *notes])


# -- drawing ---------------------------------------------------------------------------------------

COLOURS = {
    "text": "#0072B2",
    "speech": "#D55E00",
}  # of Okabe and Ito; no information by colour alone
MARKS = {1: ("o", "-"), 8: ("s", "--")}
COSTS = (0.05, 0.1, 0.2, 0.4)  # of a drafted token in plain rounds: draft step and score
LONGEST_DRAFT = 32


def best_speed_up(alpha: float, cost: float) -> float:
    """The speed-up at the best draft length."""
    price = Prices(alpha, cost, 0.0)
    return max(price.speed_up(gamma) for gamma in range(LONGEST_DRAFT + 1))


def draw(options: argparse.Namespace) -> int:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    record: dict[str, Any] = json.loads(options.json.read_text("utf-8"))
    points = [Point(**p) for p in record["points"]]
    pyplot.rcParams.update(
        {
            "font.size": 10,
            "svg.fonttype": "none",
            "svg.hashsalt": "when-it-pays",  # reproducible output
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
        }
    )
    figure, (lengths, map_) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    _by_length(lengths, points)
    _by_alpha(map_, points)
    to: Path = options.to or options.json.with_suffix(".svg")
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None)
    return 0


def _by_length(axes: Axes, points: Sequence[Point]) -> None:
    """Plot the speed-up over gamma: curves from the formula, points as measured."""
    for (pair, batch), group in grouped(points).items():
        price, gained = prices(group), speed_ups(group)
        mark, line = MARKS[batch]
        steps = [n / 10 for n in range(10 * max(gained) + 1)]
        axes.plot(steps, [price.speed_up(g) for g in steps], line, color=COLOURS[pair], alpha=0.7)
        face = COLOURS[pair] if batch == 1 else "white"
        label = f"{pair}, batch {batch}"
        axes.plot(list(gained), list(gained.values()), mark, color=COLOURS[pair],
                  markerfacecolor=face, label=label)  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xlabel="gamma (drafted tokens per round)", ylabel="speed-up over gamma 0")
    axes.set_title("measured (marks) and by formula (lines)", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _by_alpha(axes: Axes, points: Sequence[Point]) -> None:
    """Plot the best speed-up over alpha for four costs, and the measured pairs."""
    alphas = [n / 200 for n in range(192)]
    for shade, cost in zip((0.0, 0.25, 0.45, 0.6), COSTS, strict=True):
        best = [best_speed_up(alpha, cost) for alpha in alphas]
        axes.plot(alphas, best, color=str(shade))
        axes.annotate(f"price {cost:g}", (alphas[-1], best[-1]), (4, 0), va="center",
                      textcoords="offset points", fontsize=9)  # fmt: skip
    for (pair, batch), group in grouped(points).items():
        price, gained = prices(group), speed_ups(group)
        face = COLOURS[pair] if batch == 1 else "white"
        axes.plot(price.alpha, max(gained.values()), MARKS[batch][0], color=COLOURS[pair],
                  markerfacecolor=face)  # fmt: skip
        axes.annotate(f"{price.draft + price.growth:.2f}", (price.alpha, max(gained.values())),
                      (-6, 5 if batch == 1 else -5), ha="right", va="center", color=COLOURS[pair],
                      textcoords="offset points", fontsize=9)  # fmt: skip
    axes.set(xlabel="alpha (chance that a draft is kept)", ylabel="best speed-up of any gamma")
    axes.set_title("by formula (lines), and the pairs as measured", fontsize=10)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.minorticks_off()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.when_it_pays", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(required=True)
    timing = commands.add_parser("measure", help="decode with both pairs and write the record")
    timing.set_defaults(command=measure)
    timing.add_argument("--pairs", nargs="+", choices=tuple(PAIRS), default=list(PAIRS))
    timing.add_argument("--batch", nargs="+", type=int, choices=BATCHES, default=list(BATCHES))
    timing.add_argument("--repeats", type=int, default=3)
    timing.add_argument("--threads", type=int, default=1)
    drawing = commands.add_parser("draw", help="plot a record")
    drawing.set_defaults(command=draw)
    drawing.add_argument("--to", type=Path, metavar="FILE", help="default: the record's name, .svg")
    for command in (timing, drawing):
        command.add_argument("--json", type=Path, required=True, metavar="FILE")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    return int(options.command(options))


if __name__ == "__main__":
    sys.exit(main())
