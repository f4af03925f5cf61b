"""Runs sections, each within its time and alone in its failure, and prints what they found."""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.sections import Bench, Record, TimeIsUp, release
from forescribe.speculative.device import Device

GRACE = 1.5
"""How much longer than its seconds a section may take before it is stopped: what it runs by then has to end
by itself first."""


LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Section:
    """A part of the benchmark, and the seconds after which it starts nothing new."""

    measure: Callable[[Bench], Record]
    seconds: float


def run(
    bench: Bench,
    sections: Mapping[str, Section],
    *,
    seconds: float = math.inf,
    told: Callable[[str, Record], None] = lambda name, record: None,
) -> None:
    """Tells the records as sections end; that of one that failed has an `error`. All take `seconds` together;
    a section for which there is no time is left out."""
    end = time.perf_counter() + seconds
    for name, section in sections.items():
        began = time.perf_counter()
        if began >= end:
            told(name, {"left out": "no time left"})
            continue
        bench.deadline, bench.record = min(began + section.seconds, end), {}
        try:
            with stopped_after(GRACE * (bench.deadline - began)):
                record = section.measure(bench)
        except (Exception, TimeIsUp):
            record = bench.record | {"error": traceback.format_exc()}
        finally:
            release(bench.device, thoroughly=True)
        record["section_s"] = round(time.perf_counter() - began, 2)
        print(f"{name}: {record['section_s']} s", flush=True)
        told(name, record)


def failures(found: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """The sections and figures that have an error in place of a record."""
    for name, record in found.items():
        if isinstance(record, Mapping):
            shown = f"{within}, {name}" if within else name
            yield from [shown] if "error" in record else failures(record, shown)


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raises TimeIsUp in a block of the main thread that takes longer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, LONGEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(record: Mapping[str, Any]) -> str:
    """All figures for people, a line for each."""
    lines = [
        f"{record['dimensions']['name']} on {record['card']['name']}, {record['dtype']}",
        f"weights: {record['weights']}",
    ]
    for name, section in record["sections"].items():
        lines += ["", name]
        lines += [f"  {line}" for line in _lines(section)]
    lines += ["", *(f"UNEQUAL: {each}" for each in record["unequal"])]
    lines += [f"FAILED: {each}" for each in record["failed"]]
    return "\n".join(lines)


def _lines(section: Mapping[str, Any]) -> Iterator[str]:
    for name, value in section.items():
        if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
            yield name
            yield from (f"    {each}" for each in _lines(value))
        elif isinstance(value, Mapping):
            yield f"{name:55} " + "  ".join(f"{k} {_text(v)}" for k, v in value.items())
        elif isinstance(value, list):
            yield name
            yield from (f"    {each}" for each in value)
        elif name == "error":
            yield from str(value).splitlines()
        else:
            yield f"{name:55} {_text(value)}"


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def card(device: Device) -> Record:
    """What figures were measured on: name, memory and software of the device."""
    if device.kind != "cuda":
        return {"name": device.name}
    found = torch.cuda.get_device_properties(device.torch)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
    }
