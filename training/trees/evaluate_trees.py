"""Trees against chains of the same draft model: tokens per round by nodes and draft forwards, and prices.

    python -m training.trees.evaluate_trees price --model TARGET --draft DRAFT --batch 1 8 > prices.jsonl
    python -m training.trees.evaluate_trees count --model TARGET --draft DRAFT --prompts prompts.jsonl \
        --prices prices.jsonl
    python -m training.trees.evaluate_trees count --model base --draft ./draft --recordings memo.flac

`count` decodes the same requests with every drafter, on the lean engine, and compares all tokens with plain
decoding. A round's tokens do not depend on the batch. `price` times the forwards that rounds are made of, in
turns and on one thread (`time.process_time`, so that other processes slow them less), and gives the fastest
in plain rounds of the same batch and engine. With `--prices` the count adds `speed`, by engine and batch: the
tokens of a round over its price, 1 being plain decoding. Both print a line of JSON for each row.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from forescribe.asr.decode.rules import whisper_rules
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.device import choose
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.protocols import Drafter, Processor
from forescribe.speculative.types import Topology
from forescribe.text.language_model import load
from training.trees.tree_drafter import Growth, TreeDrafter
from training.trees.tree_rejection import TreeRejection

ENDLESS = 1 << 62


@dataclass
class Material:
    """A pair of models and what they decode."""

    target: Callable[[], Any]
    draft: Callable[[], Any]
    requests: list[Request]
    eos: frozenset[int]
    processors: tuple[Processor, ...] = ()


def text(model: str, draft: str, prompts: Path | None, most: int, engine: str) -> Material:
    """Prompts: lines of JSON with `messages` or `prompt`."""
    device, kind = choose("cpu", "float32"), ModelEngine.of(engine)
    target = load(model, device, network=False, engine=kind)
    small = load(draft, device, role="draft", network=False, engine=kind)
    lines = [] if prompts is None else prompts.read_text(encoding="utf-8").splitlines()
    requests = []
    for number, line in enumerate(map(json.loads, lines)):
        told = target.vocabulary
        ids = told.chat(line["messages"]) if "messages" in line else told.encode(line["prompt"])
        requests.append(Request(ids, max_new_tokens=most, tag=number))
    return Material(
        lambda: target.decoder(1024),
        lambda: small.decoder(1024, target.vocab_size),
        requests,
        target.ends,
    )


def speech(model: str, draft: str, recordings: list[str], engine: str) -> Material:
    made = Transcriber.load(
        model, draft, language="en", device="cpu", batch=8, gamma=1, network=False,
        engine=engine, drafter="model", dtype="float32", draft_dtype="float32",
    )  # fmt: skip
    whisper, requests = made.whisper, []
    options = Options(language="en", guards=None, keep_encoder_states=True)
    for outcome in made.transcribe(recordings, options) if recordings else ():
        if outcome.error is not None:
            raise outcome.error
        for window in outcome.decoded:
            prompt, tag = window.result.request.prompt, f"{outcome.name} {window.index}"
            requests.append(Request(prompt, encoder_states=window.encoder_states, tag=tag))
    target = whisper.target
    rules = whisper_rules(target.generation_config, target.config, whisper.device.torch)
    ends = whisper.tokens.ends
    return Material(whisper.decoder, whisper.drafts[0].decoder, requests, frozenset(ends), rules)


def chain_and_leaves(depth: int) -> Topology:
    """A chain, and beside each of its nodes the second choice."""
    parents, last = [], 0
    for _ in range(depth):
        parents += [last, last]
        last = len(parents) - 1
    return Topology(tuple(parents))


@dataclass(frozen=True)
class Way:
    """A drafter, and the forwards of a round: how many nodes the draft model reads in each."""

    label: str
    gamma: int
    widths: tuple[int, ...]
    make: Callable[[Any], Drafter]

    @classmethod
    def of(cls, label: str) -> Way:
        """`chain:G`, `tree:WIDTHxDEPTH:NODES`, `graft:WIDTHxDEPTH+COPIED:NODES` or `leaves:DEPTH`."""
        kind, *numbers = re.split(r"[:x+]", label)
        given = [int(n) for n in numbers]
        if kind == "chain":
            return cls(label, given[0], (2, *[1] * (given[0] - 1)), ModelDrafter)
        if kind == "leaves":
            shape = chain_and_leaves(given[0])
            widths = (2, *[1] * (given[0] - 1))
            return cls(label, len(shape.parents), widths, lambda m: TreeDrafter(m, shape))
        width, depth, *_ = given
        growth = Growth(width, depth, copied=given[2] if kind == "graft" else 0)
        first = max(2, 1 + growth.copied)
        widths = (first, *[width] * (depth - 1))
        return cls(label, given[-1], widths, lambda m: TreeDrafter(m, growth))

    def price(self, prices: dict[tuple[str, int], float]) -> float:
        """Of a round, in plain ones; between two widths that were timed, the wider one's."""

        def of(model: str, nodes: int) -> float:
            return next(p for (m, n), p in sorted(prices.items()) if m == model and n >= nodes)

        return of("target", self.gamma + 1) + sum(of("draft", width) for width in self.widths)


Prices = dict[str, dict[tuple[str, int], float]]
"""By engine and batch, of the forwards of each model over so many nodes."""


def read_prices(path: Path | None) -> Prices:
    found: Prices = {}
    for line in [] if path is None else path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind = found.setdefault(f"{row['engine']} {row['batch']}", {})
        kind[row["model"], row["nodes"]] = row["price"]
    return found


def run(
    material: Material, drafter: Drafter | None, gamma: int, batch: int, temperature: float
) -> tuple[dict[Any, tuple[int, ...]], dict[str, Any]]:
    engine = Engine(
        material.target(), drafter, batch=batch, eos=material.eos, schedule=Fixed(gamma),
        processors=material.processors, sampled=TreeRejection(),
    )  # fmt: skip
    began, tokens = time.process_time(), {}
    requests = [
        replace(r, temperature=temperature, seed=i) for i, r in enumerate(material.requests)
    ]
    for result in engine.run(requests):
        if result.error is not None or result.draft_error is not None:
            raise RuntimeError(f"{result.error or result.draft_error}")
        tokens[result.request.tag] = result.tokens
    stats = engine.stats
    seconds = {k: round(1000 * v / stats.rounds, 1) for k, v in stats.seconds.items()}
    return tokens, {
        "batch": batch,
        "nodes": gamma,
        "forwards": 0 if drafter is None else drafter.forwards(gamma),
        "tokens": stats.emitted,
        "row_rounds": stats.row_rounds,
        "tokens_per_round": round(stats.emitted / stats.row_rounds, 3),
        "by_depth": [round(share, 3) for share in stats.acceptance_at_depth if share],
        "ms_per_round": seconds,
        "cpu_s": round(time.process_time() - began, 1),
    }


def count(material: Material, options: argparse.Namespace) -> None:
    temperature = options.temperature
    plain, record = run(material, None, 0, options.batch[0], temperature)
    print(json.dumps({"drafter": "plain", "requests": len(plain)} | record), flush=True)
    prices = read_prices(options.prices)
    for way in map(Way.of, options.drafters):
        drafter = way.make(material.draft())
        tokens, record = run(material, drafter, way.gamma, options.batch[0], temperature)
        same = sum(tokens[tag] == found for tag, found in plain.items())
        equal = {"equal": f"{same} of {len(plain)}"} if temperature == 0 else {}
        each = record["tokens_per_round"]
        speed = {kind: round(each / way.price(known), 2) for kind, known in prices.items()}
        print(json.dumps({"drafter": way.label} | record | equal | {"speed": speed}), flush=True)


def price(material: Material, options: argparse.Namespace) -> None:
    """Forwards of both models, over a text of `--length` tokens, in plain rounds of the target."""
    for batch in options.batch:
        target, draft = material.target(), material.draft()
        models: dict[str, tuple[Any, list[int]]] = {
            "target": (target, [1, *options.nodes]),
            "draft": (draft, [1, 2, *[n for n in options.nodes if n <= 8]]),
        }
        best: dict[tuple[str, int], float] = {}
        for model, _ in models.values():
            model.allocate(batch, options.length + max(options.nodes) + 2)
            states = [r.encoder_states for r in material.requests[:1] * batch] or [None] * batch
            with torch.inference_mode():
                model.prefill(torch.arange(batch), torch.ones(batch, 8, dtype=torch.int64), states)
        for _ in range(options.repeats):
            for name, (model, widths) in models.items():
                for nodes in widths:
                    seconds = timed(model, batch, nodes, options.length)
                    best[name, nodes] = min(seconds, best.get((name, nodes), ENDLESS))
        plain = best["target", 1]
        for (name, nodes), seconds in best.items():
            record = {"engine": options.engine, "batch": batch, "model": name, "nodes": nodes}
            numbers = {"ms": round(1000 * seconds, 2), "price": round(seconds / plain, 3)}
            print(json.dumps(record | numbers), flush=True)


@torch.inference_mode()
def timed(model: SlotModel, batch: int, nodes: int, length: int) -> float:
    tokens = torch.ones(batch, nodes, dtype=torch.int64)
    start = torch.full((batch,), length - 1)
    topology = None if nodes < 3 else Topology(tuple(n // 2 for n in range(nodes - 1)))
    began = time.process_time()
    model.score(tokens, start, reach=length + nodes, topology=topology)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.trees.evaluate_trees")
    parser.add_argument("what", choices=["count", "price"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--recordings", nargs="+", default=[])
    parser.add_argument("--prices", type=Path, help="what `price` has printed")
    parser.add_argument("--most", type=int, default=64, help="tokens of a text")
    parser.add_argument(
        "--length", type=int, default=128, help="of the texts whose rounds are timed"
    )
    parser.add_argument("--engine", default="lean")
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4, 6, 8, 12, 16, 24, 32])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.recordings:
        made = speech(options.model, options.draft, options.recordings, options.engine)
    else:
        made = text(options.model, options.draft, options.prompts, options.most, options.engine)
    (count if options.what == "count" else price)(made, options)


DRAFTERS = [
    *(f"chain:{g}" for g in (1, 2, 3, 4, 6, 8)),
    *(f"tree:{w}x{d}:{n}" for w, d in ((2, 2), (3, 2)) for n in (4, 6, 8)),
    *(f"tree:4x4:{n}" for n in (8, 16, 32)),
    *(f"leaves:{d}" for d in (2, 3, 4)),
]


if __name__ == "__main__":
    main()
