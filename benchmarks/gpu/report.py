"""Runs sections, each within its time and alone in its failure, and prints what they found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.sections import Bench, Record, release
from forescribe.speculative.device import Device


@dataclass(frozen=True)
class Section:
    """A part of the benchmark, and the seconds after which it starts nothing new."""

    measure: Callable[[Bench], Record]
    seconds: float


def run(bench: Bench, sections: Mapping[str, Section]) -> tuple[dict[str, Record], list[str]]:
    """The records by section, and the names of those that failed: their record is a traceback."""
    found: dict[str, Record] = {}
    failed = []
    for name, section in sections.items():
        began = time.perf_counter()
        bench.deadline = began + section.seconds
        try:
            found[name] = section.measure(bench)
        except Exception:
            failed.append(name)
            found[name] = {"error": traceback.format_exc()}
        finally:
            release(bench.device)
        found[name]["section_s"] = round(time.perf_counter() - began, 2)
        print(f"{name}: {found[name]['section_s']} s", flush=True)
    return found, failed


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
