"""Decodes windows of large-v3's dimensions on a CPU: native and lean engine in bfloat16, CTranslate2 in int8.

    python -m benchmarks.large_v3 --json large-v3.json     # about three minutes and 8 GiB on two idle cores
    python -m benchmarks.large_v3 --small                  # the whole program in seconds

Exit status: 0; 1 if a text of this package differs from plain decoding or from what the weights encode.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import provenance
from benchmarks.gpu.dimensions import LARGE_V3, SMALL
from benchmarks.gpu.pair import DECODERS, Pair
from benchmarks.large_v3 import ctranslate2_rows, decoding_rows
from benchmarks.provenance import instruction_set
from benchmarks.rows import layout
from forescribe.speculative.device import choose
from forescribe.speculative.native.library import load


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.large_v3")
    made.add_argument("--small", action="store_true", help="tiny dimensions, to try the program")
    made.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32")
    made.add_argument(
        "--engines", nargs="*", choices=sorted(DECODERS), default=["native", "lean"], metavar="NAME"
    )
    made.add_argument("--batches", type=int, nargs="+", default=[1, 4], metavar="N")
    made.add_argument("--tokens", type=int, default=64, help="of a window")
    made.add_argument("--gamma", type=int, default=5, help="drafted tokens per round")
    made.add_argument(
        "--agreement", type=float, default=0.93, help="share of the draft's tokens that are right"
    )
    made.add_argument(
        "--peer", default="int8", metavar="TYPE", help="CTranslate2's compute type, or none"
    )
    made.add_argument("--kernels", metavar="NAME", help="instruction set of the native kernels")
    made.add_argument("--no-encoder", action="store_true", help="leave out the encoder's time")
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.kernels:
        load().choose(options.kernels)
    dimensions = SMALL if options.small else LARGE_V3
    tokens = min(options.tokens, 24) if options.small else options.tokens
    began = time.perf_counter()
    needs_encoder = not options.no_encoder or options.peer != "none"
    pair = Pair.build(
        dimensions, choose("cpu", options.dtype), [options.agreement], encoder=needs_encoder
    )
    record: dict[str, Any] = provenance.record("benchmarks.large_v3") | {
        "benchmark": "large_v3",
        "weights": "constructed: agreement is set, tokens mean nothing",
        "dimensions": asdict(dimensions),
        "dtype": str(pair.device.dtype).removeprefix("torch."),
        "stored": str(pair.device.stored).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "agreement": options.agreement,
        "native_kernels": instruction_set(),
        "bfloat16_units": choose("cpu", "bfloat16").weights is None,
        "build_s": round(time.perf_counter() - began, 1),
        "rows": [],
        "peer": [],
    }
    _say("models", began)
    if not options.no_encoder:
        record["encoder"] = decoding_rows.encoders(pair)
        _say("encoder", began)
    if options.peer != "none":
        record |= _peer(pair, options, tokens)
        _say("CTranslate2", began)
    if needs_encoder:
        pair.target.model.encoder = None
        gc.collect()
    for engine in options.engines:
        for row in decoding_rows.measure(
            pair,
            engine,
            options.agreement,
            batches=options.batches,
            gamma=options.gamma,
            tokens=tokens,
        ):
            record["rows"].append(asdict(row))
            _say(f"{engine} batch {row.batch} {row.head or 'plain'}", began)
        gc.collect()
    record["wall_s"] = round(time.perf_counter() - began, 1)
    print(decoding_rows.sizes(dimensions))
    print(table(record))
    line = json.dumps(record)
    if options.json:
        options.json.write_text(line + "\n", encoding="utf-8")
    return 0 if all(row["equal"] for row in record["rows"]) else 1


def _say(what: str, began: float) -> None:
    print(f"{time.perf_counter() - began:6.1f} s: {what}", file=sys.stderr, flush=True)


def _peer(pair: Pair, options: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Rows of CTranslate2; the reason where it is missing, or refuses: its rows are lost, not the run."""
    known = decoding_rows.work(pair, max(options.batches), tokens)
    try:
        found = ctranslate2_rows.rows(pair, options.batches, known, tokens, options.peer)
        return {"peer": [asdict(row) for row in found]}
    except Exception as error:  # the library may raise anything
        return {"peer_error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()


def table(record: dict[str, Any]) -> str:
    """The record for people."""
    head = ["engine", "batch", "draft head", "prefill s", "round ms", "drafted ms", "tokens/round",
            "accepted", "tokens/s", "equal"]  # fmt: skip
    lines = [head]
    for row in record["rows"]:
        lines.append([
            row["engine"], str(row["batch"]), row["head"] or "-", f"{row['prefill_s']:.2f}",
            f"{row['round_ms']:.1f}", _number(row["drafted_ms"]), f"{row['tokens_per_round']:.2f}",
            _number(row["acceptance"]), f"{row['tokens_per_s']:.2f}", "yes" if row["equal"] else "NO",
        ])  # fmt: skip
    for row in record["peer"]:
        lines.append([
            f"CTranslate2 {row['compute_type']}", str(row["batch"]), "-", f"{row['prefill_s']:.2f}",
            f"{row['step_ms']:.1f}", "-",
            "1.00", "-", f"{row['tokens_per_s']:.2f}", "yes" if row["equal"] else "no",
        ])  # fmt: skip
    kernels = record["native_kernels"] or "none"
    said = [
        *layout(lines),
        f"{record['threads']} threads, {record['stored']} weights, kernels: {kernels}",
    ]
    if "encoder" in record:
        found = record["encoder"]
        native = found["problem"] or "states equal but for rounding"
        said.append(
            f"encoder, s per window: modules {found['modules_s']:.2f}, native {_number(found['native_s'])}, "
            f"in int8 {_number(found['int8_s'])} "
            f"({native}), {record['dtype']}"
        )
    if record["peer"]:
        said.append(f"encoder of CTranslate2, s per window: {record['peer'][0]['encoder_s']:.2f}")
    if "peer_error" in record:
        said.append(f"no rows of CTranslate2: {record['peer_error']}")
    return "\n".join(said)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
