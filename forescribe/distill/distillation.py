"""A distillation from recordings to a folder: labels, start, training, report.

`OUTPUT/.distill` holds what each stage made, so that the same command goes on after Ctrl-C or a kill. One
process at a time works in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError, output_errors
from forescribe.asr.formats.files import put
from forescribe.speculative.drafters.model_drafter import TOKENS_FILE, DraftTokens

from .labels import LabelRow, LabelStore, split
from .report import figures_of, markdown
from .speech import Hook, Pair, Skipped
from .training import DraftTraining, Progress

NAME = ".distill"

HEAD_COVERAGE = 0.98
"""Share of the labels' tokens that a cut head has: the rarest ones make it twice as large."""

LABEL_SHARE = 0.4
"""Share of the minutes in which labels are made, at most; what they leave is for the training."""

ROOM = "make room and run the same command again, or name another folder: -o"

Label = Callable[[LabelStore, Callable[[], bool]], list[Skipped]]
"""Adds labels to a store until the function says that the time is over; returns what was skipped."""


@dataclass(frozen=True)
class WorkFolder:
    """The work folder of an output folder, for a command of these `settings`."""

    output: Path
    settings: Mapping[str, Any]
    overwrite: bool = False

    @property
    def path(self) -> Path:
        return self.output / NAME

    def check(self) -> None:
        """Raises UsageError for an output folder that holds something else; changes nothing."""
        holds = self.output.is_dir() and any(e.name != NAME for e in self.output.iterdir())
        if holds and not self.overwrite and self.read("settings") is None:
            raise UsageError(
                f"-o {self.output}: the folder is not empty; --overwrite replaces what is in it, or name "
                "another one"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps others out. Raises UsageError for a folder of other settings, or one in which another process
        is at work; OutputError where the disk refuses."""
        self.check()
        with output_errors(str(self.path), ROOM):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("wb")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"-o {self.output}: another process distils into it") from None
            self._begin()
            yield

    def _begin(self) -> None:
        before = self.read("settings")
        if before is not None and not self.overwrite:
            for name, value in self.settings.items():
                if before.get(name) != value:
                    raise UsageError(
                        f"-o {self.output}: a run with another {name} was begun there: repeat its command to "
                        "go on, or give --overwrite to begin anew"
                    )
            return
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != "lock":
                entry.unlink()
        self.keep("settings", self.settings)

    def read(self, name: str) -> Any:
        """A JSON file of the folder; None where it is not there."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def keep(self, name: str, value: Any) -> None:
        """Write a JSON file. Raises OutputError."""
        with output_errors(str(self.path), ROOM):
            put(self.path / f"{name}.json", json.dumps(value, indent=1) + "\n")


@dataclass(frozen=True)
class Distillation:
    """One distillation; `layers` of the target make the draft where `start` is None. `run` returns its
    report, None where it ended before there was a draft."""

    pair: Pair
    label: Label
    work: WorkFolder
    stop: Stop
    hook: Hook
    start: Path | None = None
    layers: int | None = None
    minutes: float = 30.0
    steps: int | None = None
    seed: int = 0
    cut_head: bool = False

    def run(self) -> dict[str, Any] | None:
        """Raises UsageError for too little data, OutputError where the disk refuses."""
        pair, work, output = self.pair, self.work, self.work.output
        depth = pair.target.config.decoder_layers
        if self.start is not None:  # before anything is labelled
            pair.open(self.start)
        elif self.layers is None or not 0 < self.layers < depth:
            raise UsageError(
                f"--layers {self.layers}: from 1 to {depth - 1} of the model's {depth}"
            )
        with work.held():
            store = LabelStore(work.path / "labels")
            skipped = self._labelled(store)
            if self.stop.requested:
                return None
            rows, held_out = split(store.rows())
            start, origin = self._start()
            listed = self._listed(rows) if self.cut_head else None
            torch.manual_seed(self.seed)
            training = DraftTraining(
                pair,
                pair.open(start),
                rows,
                held_out,
                work.path / "checkpoint.pt",
                seed=self.seed,
                seconds=max(1.0, 60 * self.minutes - (work.read("label_seconds") or 0.0)),
                steps=self.steps,
            )
            progress = training.run(self.stop, self.hook)
            training.draft.load_state_dict(training.state.best, strict=False)
            with output_errors(str(output), ROOM):
                self._replace(training.draft)
                if listed is not None:
                    put(output / TOKENS_FILE, listed.to_json())
                self.hook("report", 0, None, "")
                report = self._report(rows, held_out, progress, skipped)
                report["start"] = origin
                report |= figures_of(pair, {"before": start, "after": output}, held_out, listed)
                report["head"] = None if listed is None else [len(listed.ids), listed.vocab_size]
                put(output / "report.md", markdown(report))
                put(output / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
            if progress.finished:
                shutil.rmtree(work.path, ignore_errors=True)
        return report

    def _labelled(self, store: LabelStore) -> list[Skipped]:
        if (done := self.work.read("labelled")) is not None:
            return [Skipped(*each) for each in done]
        limit, before = LABEL_SHARE * 60 * self.minutes, self.work.read("label_seconds") or 0.0
        began = time.monotonic()

        def over() -> bool:
            spent = before + time.monotonic() - began
            self.work.keep("label_seconds", spent)
            return self.steps is None and spent >= limit

        skipped = self.label(store, over)
        over()
        if not self.stop.requested:
            self.work.keep("labelled", [[s.name, s.reason] for s in skipped])
        return skipped

    def _start(self) -> tuple[Path, str]:
        """The folder of the draft that training begins with, and what it is."""
        if self.start is not None:
            return self.start, str(self.start)
        folder = self.work.path / "start"
        if not (folder / "config.json").exists():
            assert self.layers is not None
            draft, kept = self.pair.pruned(self.layers)
            self.work.keep("layers", kept)
            with output_errors(str(folder), ROOM):
                folder.mkdir(parents=True, exist_ok=True)
                self.pair.save(draft, folder)
        return folder, f"layers {self.work.read('layers')} of the target"

    def _listed(self, rows: Sequence[LabelRow]) -> DraftTokens:
        """The tokens of the labels, but for the rarest, and all special ones: from end-of-text on."""
        counted = Counter(token for row in rows for token in row.tokens[row.begin :])
        size = self.pair.target.config.vocab_size
        special = range(self.pair.whisper.tokens.end, size)
        source = "labels of forescribe distill"
        return DraftTokens.most_frequent(counted, special, size, source, coverage=HEAD_COVERAGE)

    def _report(
        self,
        rows: Sequence[LabelRow],
        held_out: Sequence[LabelRow],
        progress: Progress,
        skipped: Sequence[Skipped],
    ) -> dict[str, Any]:
        return {
            "settings": dict(self.work.settings),
            "finished": progress.finished,
            "rows": {"trained": len(rows), "held_out": len(held_out)},
            "seconds": {
                "labels": round(self.work.read("label_seconds") or 0.0, 1),
                "training": round(progress.seconds, 1),
            },
            "steps": progress.step,
            "chosen": asdict(progress.chosen),
            "evaluations": [asdict(each) for each in progress.evaluations],
            "skipped": [asdict(each) for each in skipped],
        }

    def _replace(self, draft: Any) -> None:
        """Write a draft beside its place and move it there, config.json last: whoever is killed meanwhile
        leaves a folder that says what it lacks. Raises OSError."""
        made, output = self.work.path / "made", self.work.output
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        self.pair.save(draft, made)
        for name in ("config.json", TOKENS_FILE):
            (output / name).unlink(missing_ok=True)
        for path in sorted(made.iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(path, output / path.name)
        made.rmdir()
