"""A distillation from data to a folder: labels, start, prices, training, report.

Each stage keeps what it made, so that the same command goes on after Ctrl-C or a kill. Knows the order of
the stages; what they do is in the other modules.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError
from forescribe.speculative.drafters.draft_tokens import FILE, DraftTokens

from .draft_lists import DraftVocabulary
from .files import WorkFolder, put_bytes, writing
from .labels import CutHead, LabelRow, LabelStore, repeated_share, split
from .pair import DraftPair, Hook
from .pruning import Choice, measured_distances, spaced
from .report import Prices, figures_of, markdown, measured_prices, speedup, versions
from .speech import Skipped
from .training import DraftTraining, Progress, TrainingPlan

HEAD_COVERAGE = 0.98
"""Share of the labels' tokens that a cut head has: the rarest ones make it twice as large."""

LABEL_SHARE = 0.4
"""Share of the minutes in which labels are made, at most; what they leave is for the training."""

Label = Callable[[LabelStore, Callable[[], bool]], list[Skipped]]
"""Adds labels to a store until the function says that the time is over; returns what was skipped."""


@dataclass(frozen=True)
class DistillSettings:
    """What is asked for. `layers` of the target make the draft where `start` is None. `record` are the
    settings that a repeated command must have too, `label_record` those of them on which labels depend."""

    output: Path
    start: Path | None
    layers: int | None = None
    choose: Choice = "angular"
    minutes: float = 30.0
    steps: int | None = None
    seed: int = 0
    on_policy: bool = False
    cut_head: bool = False
    batch: int = 1
    overwrite: bool = False
    keep_labels: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    label_record: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.start is None) == (self.layers is None):
            raise UsageError("a draft begins either as another one or with layers of its target")


class Distillation:
    """One distillation; `run` returns its report, None where it ended before there was a draft."""

    def __init__(
        self,
        pair: DraftPair,
        label: Label,
        settings: DistillSettings,
        *,
        stop: Stop,
        hook: Hook,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` is called with lines for people."""
        self.pair, self.label, self.settings = pair, label, settings
        self.stop, self.hook, self.say, self.clock = stop, hook, say, clock

    def run(self) -> dict[str, Any] | None:
        """Raises UsageError for too little data, OutputError where the disk refuses."""
        settings = self.settings
        self._check_start()
        with WorkFolder(
            settings.output,
            settings.record,
            labels=settings.label_record,
            overwrite=settings.overwrite,
        ) as work:
            skipped = self._label(work)
            if self.stop.requested:
                return None
            rows, held_out = split(LabelStore(work.labels).rows())
            start = self._start(work, rows)
            if self.stop.requested:
                return None
            listed = self._listed(rows) if settings.cut_head else None
            self.hook("prices", 0, None, "")
            prices = self._prices(work, start, held_out, listed)
            self.say(prices.verdict())
            training = self._training(work, start, rows, held_out, prices, listed)
            progress = training.run(self.stop, self.hook)
            training.load_best()
            with writing(settings.output):
                _replace(self.pair, training.draft, work.path / "made", settings.output)
            if listed is not None:
                put_bytes(settings.output / FILE, listed.to_json().encode())
            report = self._report(work, start, rows, held_out, progress, prices, skipped, listed)
            work_is_over = progress.finished and not settings.keep_labels
            if work_is_over:
                work.remove()
        return report

    def _check_start(self) -> None:
        """Raises UsageError for what cannot be trained, before anything is labelled."""
        settings = self.settings
        if settings.start is not None:
            self.pair.open(settings.start)
        else:
            assert settings.layers is not None
            spaced(settings.layers, len(self.pair.layers(self.pair.target)))

    def _label(self, work: WorkFolder) -> list[Skipped]:
        store, limit = LabelStore(work.labels), LABEL_SHARE * 60 * self.settings.minutes
        before = float(work.read("label_seconds") or 0.0)
        if work.read("labelled"):
            return [Skipped(*pair) for pair in work.read("labelled")["skipped"]]
        began = self.clock()

        def over() -> bool:
            spent = before + self.clock() - began
            work.keep("label_seconds", spent)
            return self.settings.steps is None and spent >= limit

        skipped = self.label(store, over)
        over()
        if not self.stop.requested:
            work.keep("labelled", {"skipped": [[s.name, s.reason] for s in skipped]})
        return skipped

    def _start(self, work: WorkFolder, rows: Sequence[LabelRow]) -> Path:
        """The folder of the draft that training begins with."""
        settings = self.settings
        if settings.start is not None:
            return settings.start
        assert settings.layers is not None
        if not (work.start / "config.json").exists():
            kept = spaced(settings.layers, len(self.pair.layers(self.pair.target)))
            if settings.choose != "spacing":
                self.hook("distances", 0, None, "")
                distances = measured_distances(self.pair, rows)
                kept = distances.chosen(settings.layers, settings.choose)
            work.keep("layers", kept)
            _write(self.pair, self.pair.pruned(kept), work.start)
        return work.start

    def _prices(
        self,
        work: WorkFolder,
        start: Path,
        held_out: Sequence[LabelRow],
        listed: DraftTokens | None,
    ) -> Prices:
        known = work.read("prices")
        if known is not None:
            return Prices({int(gamma): seconds for gamma, seconds in known.items()})
        prices = measured_prices(self.pair, start, held_out, self.settings.batch, listed)
        work.keep("prices", prices.round_s)
        return prices

    def _training(
        self,
        work: WorkFolder,
        start: Path,
        rows: Sequence[LabelRow],
        held_out: Sequence[LabelRow],
        prices: Prices,
        listed: DraftTokens | None,
    ) -> DraftTraining:
        settings = self.settings
        seconds = 60 * settings.minutes - float(work.read("label_seconds") or 0.0)
        plan = TrainingPlan(
            seed=settings.seed,
            seconds=None if settings.steps is not None else max(1.0, seconds),
            steps=settings.steps,
            on_policy=settings.on_policy,
        )
        torch.manual_seed(settings.seed)
        draft, head = self.pair.open(start), None
        if listed is not None:
            head = CutHead.of(listed.ids, listed.vocab_size, self.pair.device.torch)
        return DraftTraining(self.pair, draft, rows, held_out, prices, plan, work.checkpoint, head)

    def _listed(self, rows: Sequence[LabelRow]) -> DraftTokens:
        """The tokens of the labels, but for the rarest."""
        vocabulary = DraftVocabulary(self.pair.target_folder)
        counted = Counter(token for row in rows for token in row.tokens[row.begin :])
        return DraftTokens.most_frequent(
            counted,
            vocabulary.always,
            vocabulary.size,
            "labels of forescribe distill",
            coverage=HEAD_COVERAGE,
        )

    def _report(
        self,
        work: WorkFolder,
        start: Path,
        rows: Sequence[LabelRow],
        held_out: Sequence[LabelRow],
        progress: Progress,
        prices: Prices,
        skipped: Sequence[Skipped],
        listed: DraftTokens | None,
    ) -> dict[str, Any]:
        settings, pair = self.settings, self.pair
        self.hook("report", 0, None, "")
        chosen = progress.chosen
        report: dict[str, Any] = {
            "settings": dict(settings.record),
            "start": str(settings.start or f"layers {work.read('layers')} of the target"),
            "finished": progress.finished,
            "rows": {
                "trained": len(rows),
                "held_out": len(held_out),
                "repeated_share": round(repeated_share(rows, held_out), 3),
            },
            "tokens": {"trained": sum(r.answered for r in rows)},
            "seconds": {
                "labels": round(float(work.read("label_seconds") or 0.0), 1),
                "training": round(progress.seconds, 1),
            },
            "steps": progress.step,
            "batch": settings.batch,
            "round_ms_by_gamma": prices.to_json(),
            "pays": prices.verdict(),
            "chosen": chosen.to_json(),
            "evaluations": [e.to_json() for e in progress.evaluations],
        }
        drafts = {"before": start, "after": settings.output}
        figures = figures_of(pair, drafts, held_out, settings.batch, listed)
        for name, of_kind in figures.items():
            report[name] = {kind: found.to_json() for kind, found in of_kind.items()}
        report["speedup"] = {name: round(speedup(made), 3) for name, made in figures.items()}
        report["head"] = None if listed is None else _head(listed, held_out)
        report["skipped"] = [{"name": s.name, "reason": s.reason} for s in skipped]
        report["versions"] = versions()
        put_bytes(settings.output / "report.md", markdown(report).encode())
        put_bytes(settings.output / "report.json", _json(report))
        return report


def _head(listed: DraftTokens, held_out: Sequence[LabelRow]) -> dict[str, Any]:
    """The size of a cut head, and the share of the held-out tokens that it lacks."""
    known = set(listed.ids)
    tokens = [token for row in held_out for token in row.tokens[row.begin :]]
    lost = sum(token not in known for token in tokens) / len(tokens)
    return {"tokens": len(known), "of": listed.vocab_size, "lost_share": round(lost, 5)}


def _json(value: Any) -> bytes:
    import json

    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _write(pair: DraftPair, draft: Any, folder: Path) -> None:
    """A draft's folder, whose config.json appears last. Raises OutputError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pair.save(draft, folder)


def _replace(pair: DraftPair, draft: Any, made: Path, output: Path) -> None:
    """Write a draft beside its place and move it there, config.json last: whoever is killed meanwhile leaves
    a folder that says what it lacks. Raises OSError."""
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    pair.save(draft, made)
    for name in ("config.json", FILE):
        (output / name).unlink(missing_ok=True)
    names = sorted((entry.name for entry in made.iterdir()), key=lambda n: n == "config.json")
    for name in names:
        os.replace(made / name, output / name)
    made.rmdir()
