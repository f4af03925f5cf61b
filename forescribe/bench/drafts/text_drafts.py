"""Drafters of text: this engine's systems of `bench text`, in turns in one process.

Knows prompts, models and heads; nothing of figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from forescribe.speculative.device import Device, choose
from forescribe.speculative.models.engines import ModelEngine, draft_device
from forescribe.speculative.stats import Stats
from forescribe.text.drafts import HeadDraft, load_draft
from forescribe.text.language_model import LanguageModel, load
from forescribe.text.presets import NGRAM, resolve

from ..formats import dtype_of, quantization_of
from ..text.bench_text import check_room, encoded, read_prompts
from ..text.text_systems import System, ours, room
from .draft_options import Material, Options
from .draft_rows import PLAIN, DraftRun, Gamma

MODEL = "demo-text"

Draft = LanguageModel | HeadDraft | str


def text_runs(options: Options, say: Callable[[str], None]) -> tuple[Material, list[DraftRun]]:
    """Plain decoding, n-gram lookup and every draft."""
    lines = None if options.prompts is None else read_prompts(Path(options.prompts))
    pair, device = (
        resolve(options.model or MODEL, None),
        choose("cpu", dtype_of(options.dtype), quantization_of(options.dtype)),
    )
    engine = ModelEngine.of(options.engine)
    if options.threads:
        torch.set_num_threads(options.threads)
    target = load(pair.target, device, network=False, engine=engine)
    names = options.draft or ((pair.draft,) if pair.draft not in (None, NGRAM) else ())
    drafts: dict[str, Draft] = {NGRAM: NGRAM}
    for name in names:
        if name is not None and name != NGRAM:
            drafts[Path(name).name] = _own(name, target, device, engine, options.draft_dtype)
    prompts = encoded(target, lines, None)
    check_room(
        prompts,
        options.max_tokens,
        min(room(target, each) for each in drafts.values()),
        target.name,
    )
    runs = _measured(options, target, drafts, device, prompts, say)
    text = (
        f"{options.model or MODEL}, {len(prompts)} prompts, up to {options.max_tokens} tokens each"
    )
    return Material(text, {"prompts": len(prompts), "prompt_tokens": sum(map(len, prompts))}), runs


def _own(
    name: str | Path, target: LanguageModel, device: Device, engine: ModelEngine, dtype: str
) -> Draft:
    """A draft in its own number format; a head, which has no format of its own, in the target's."""
    found = load_draft(name, target, device, network=False, engine=engine)
    place = draft_device(device, dtype, engine)
    if isinstance(found, HeadDraft) or place == device:
        return found
    return load(name, place, role="draft", network=False, engine=engine)


def _measured(
    options: Options,
    target: LanguageModel,
    drafts: dict[str, Draft],
    device: Device,
    prompts: Sequence[tuple[int, ...]],
    say: Callable[[str], None],
) -> list[DraftRun]:
    chosen: list[tuple[str, Gamma, System]] = []
    for batch in options.batches:
        made = ours(
            target, None, device, batch=batch, gamma=0, most=options.max_tokens, dtype=options.dtype
        )
        chosen.append((PLAIN, 0, made))
    for batch in options.batches:
        for label, draft in drafts.items():
            for gamma in options.gamma:
                made = ours(
                    target,
                    draft,
                    device,
                    batch=batch,
                    gamma=gamma,
                    most=options.max_tokens,
                    dtype=options.dtype,
                )
                chosen.append((label, gamma, made))
    turns: list[list[tuple[float, list[tuple[int, ...]], Stats]]] = [[] for _ in chosen]
    for _, _, system in chosen:
        system.write(prompts[:1])
    for turn in range(1, options.repeats + 1):
        for (label, _, system), done in zip(chosen, turns, strict=True):
            assert system.stats is not None
            before, started = system.stats(), time.perf_counter()
            texts = system.write(prompts)
            done.append((time.perf_counter() - started, texts, system.stats() - before))
            say(f"{turn}/{options.repeats} {label} batch {system.batch}: {done[-1][0]:.2f} s")
    return [
        _run(label, gamma, system, done)
        for (label, gamma, system), done in zip(chosen, turns, strict=True)
    ]


def _run(
    label: str,
    gamma: Gamma,
    system: System,
    turns: Sequence[tuple[float, list[tuple[int, ...]], Stats]],
) -> DraftRun:
    ordered = sorted(turns, key=lambda turn: turn[0])
    _, texts, stats = ordered[(len(ordered) - 1) // 2]
    return DraftRun(
        label,
        system.batch,
        gamma,
        walls_s=[wall for wall, _, _ in turns],
        tokens=texts,
        stats=stats,
        steady=all(each == texts for _, each, _ in turns),
    )
