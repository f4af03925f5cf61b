"""Train a block head for the bundled Whisper target.

    OMP_NUM_THREADS=1 nice python -m training.block.written_windows --labels LABELS
    OMP_NUM_THREADS=1 nice python -m training.block.train_block --minutes 25

The target is frozen; its tokens and states are those that `written_windows` stored. The head begins with the
layers of the distilled draft, and learns the target's distribution at every place of blocks behind random
anchors, of random length, each place weighing less than the one before. It is saved every minute; a
repeated command goes on from there, with new optimizers, until the minutes of all of them are spent.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, kl_div, linear

from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.distill.training import Optimizers, rate
from forescribe.speculative.device import choose
from forescribe.speculative.models.heads.whisper_block import (
    BlockShape,
    WhisperBlock,
    read_block,
    write_block,
)
from training.block.written_windows import WORK, taps_of

BLOCK, LENGTHS = 11, (5, 8, 11)
WINDOWS, ANCHORS = 4, 32
PEAK, FALL_FROM = 2e-3, 0.5
GAMMA = 5.0  # place i weighs exp(-i / GAMMA)
HARD = 0.5  # weight of the target's choice beside its distribution
PROMPT = 3  # tokens before the first anchor, the pending one apart
NOTE_EVERY, SAVE_EVERY = 20, 60.0  # steps, seconds
HELD_OUT = 1  # files


@dataclass(frozen=True, eq=False)
class Spoken:
    """A window: encoder states `[S, D]`, tokens `[n]`, tapped states `[n - 1, H, D]`."""

    encoder_states: Tensor
    tokens: Tensor
    taps: Tensor


@dataclass(frozen=True, eq=False)
class Lesson:
    """Windows of about equal length, padded: states `[W, S, D]`, tokens `[W, T]`, taps `[W, T, H, D]`,
    lengths `[W]`."""

    encoder_states: Tensor
    tokens: Tensor
    taps: Tensor
    lengths: Tensor

    @staticmethod
    def of(windows: list[Spoken]) -> Lesson:
        def padded(rows: list[Tensor]) -> Tensor:
            return nn.utils.rnn.pad_sequence(rows, batch_first=True)

        return Lesson(
            torch.stack([w.encoder_states for w in windows]).float(),
            padded([w.tokens for w in windows]),
            padded([nn.functional.pad(w.taps, (0, 0, 0, 0, 0, 1)) for w in windows]).float(),
            torch.tensor([len(w.tokens) for w in windows]),
        )


class Windows:
    """The windows of all files that exist so far."""

    def __init__(self, written: Path) -> None:
        self.written = written
        self.files: dict[str, list[Spoken]] = {}
        self.refresh()

    def refresh(self) -> None:
        for path in sorted(self.written.glob("*-*.npz")):
            if path.name not in self.files and ".tmp" not in path.name:
                self.files[path.name] = list(self._read(path))

    def _read(self, path: Path) -> Iterator[Spoken]:
        found, start = np.load(path), 0
        states = torch.from_numpy(found["states"])
        tokens, taps = torch.from_numpy(found["tokens"]).long(), torch.from_numpy(found["taps"])
        for number, length in enumerate(found["lengths"].tolist()):
            first = start - number  # a window has a state less than tokens
            yield Spoken(
                states[number], tokens[start : start + length], taps[first : first + length - 1]
            )
            start += length

    @property
    def held_out(self) -> list[Spoken]:
        return [w for name in list(self.files)[:HELD_OUT] for w in self.files[name]]

    def draw(self, rng: np.random.Generator) -> Lesson:
        """Windows of similar length, to pad little."""
        known = [w for name in list(self.files)[HELD_OUT:] for w in self.files[name]]
        known = [w for w in known if len(w.tokens) > PROMPT + 2]
        chosen = [known[i] for i in rng.choice(len(known), 4 * WINDOWS, replace=False)]
        chosen.sort(key=lambda w: len(w.tokens))
        first = WINDOWS * int(rng.integers(4))
        return Lesson.of(chosen[first : first + WINDOWS])


def begun(
    target: Mapping[str, Tensor], draft: Mapping[str, Tensor], shape: BlockShape
) -> WhisperBlock:
    """A head with the layers of a distilled draft. Its embeddings are not the target's, so a linear map
    between both, by least squares, goes before the first layer and behind the last."""
    prefix = "model.decoder."
    ours = {n.removeprefix(prefix): w.float() for n, w in draft.items() if n.startswith(prefix)}
    theirs = target["model.decoder.embed_tokens.weight"].float()
    bridge = torch.linalg.lstsq(theirs, ours["embed_tokens.weight"]).solution  # [D, D]
    made = {name: torch.zeros(sizes) for name, sizes in shape.tensors().items()}
    for layer in range(shape.layers):
        theirs_of = f"layers.{layer}."
        for kind, name, norm in (
            ("self", "self_attn", "self_attn_layer_norm"),
            ("cross", "encoder_attn", "encoder_attn_layer_norm"),
        ):
            source, here = f"{theirs_of}{name}.", f"layers.{layer}.{kind}_"
            for part in ("weight", "bias"):
                made[f"{here}norm.{part}"] = ours[f"{theirs_of}{norm}.{part}"]
                made[f"{here}query.{part}"] = ours[f"{source}q_proj.{part}"]
                made[f"{here}out.{part}"] = ours[f"{source}out_proj.{part}"]
            keys, values = ours[f"{source}k_proj.weight"], ours[f"{source}v_proj.weight"]
            made[f"{here}key_value.weight"] = torch.cat([keys, values])
            made[f"{here}key_value.bias"][shape.width :] = ours[f"{source}v_proj.bias"]
        for here, name in (("inner_norm", "final_layer_norm"), ("up", "fc1"), ("down", "fc2")):
            for part in ("weight", "bias"):
                made[f"layers.{layer}.{here}.{part}"] = ours[f"{theirs_of}{name}.{part}"]
        made[f"layers.{layer}.taps.weight"][:, : shape.width] = bridge.T
    for part in ("weight", "bias"):
        made[f"norm.{part}"] = ours[f"layer_norm.{part}"]
    made["input.weight"], made["output.weight"] = bridge.T, bridge
    made["positions"] = ours["embed_positions.weight"]
    made["masks"] = 0.02 * torch.randn(shape.block, shape.width)
    made["masks"][0] = 0
    return WhisperBlock(shape, {name: weight.clone() for name, weight in made.items()})


def blocks(
    head: WhisperBlock, lesson: Lesson, table: Tensor, places: Tensor, size: Tensor
) -> Tensor:
    """What the output layer reads `[W, A, Q, D]` of blocks behind the pending tokens at `places [W, A]`. Of a
    block the first `size [W, A]` queries read each other; the rest is not defined."""
    rows, anchors = places.shape
    block = head.shape.block
    offset, row = torch.arange(block), torch.arange(rows)[:, None]
    before = torch.arange(lesson.tokens.shape[1]) < places[..., None]  # [W, A, T]
    before = before[:, :, None].expand(-1, -1, block, -1).flatten(1, 2)
    number = torch.arange(anchors).repeat_interleave(block)
    within = (number[:, None] == number) & (offset < size[..., None]).flatten(1)[:, None]
    mask = torch.where(torch.cat([before, within], -1)[:, None], 0.0, -1e9)
    pending = embedding(lesson.tokens[row, places], table).flatten(0, 1)  # [W A, D]
    slots = (places[..., None] + offset).flatten(0, 1)
    x = head.embed(pending[:, None], slots).view(rows, anchors * block, -1)
    for layer in range(head.shape.layers):
        context, cross = head.context(layer, lesson.taps), head.cross(layer, lesson.encoder_states)
        x = head.layer(layer, x, context, cross, mask.to(x.dtype))
    return head.finish(x).view(rows, anchors, block, -1)


def loss(
    head: WhisperBlock, lesson: Lesson, table: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The loss of blocks behind random anchors, and the share of equal choices at each place."""
    rows, length = lesson.tokens.shape
    block, row = head.shape.block, torch.arange(rows)[:, None]
    span = (lesson.lengths - 1 - PROMPT)[:, None]
    places = PROMPT + (torch.rand(rows, ANCHORS, generator=generator) * span).long()  # pending
    size = torch.tensor(LENGTHS)[torch.randint(len(LENGTHS), places.shape, generator=generator)]
    offset = torch.arange(block)
    at = places[..., None] + offset  # [W, A, Q]: states that predict the drafts
    inside = (at < lesson.lengths[:, None, None] - 1) & (offset < size[..., None])
    guess = linear(blocks(head, lesson, table, places, size)[inside], table).float()
    at = at.clamp_max(length - 1)
    flat = at.flatten(1)
    choice = lesson.tokens[row, (flat + 1).clamp_max(length - 1)].view_as(at)[inside]
    wanted = linear(lesson.taps[row, flat, -1].view(*at.shape, -1)[inside], table).float()
    soft = kl_div(guess.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none")
    each = soft.sum(-1) + HARD * cross_entropy(guess, choice, reduction="none")
    depth = offset.expand_as(inside)[inside]
    weight = (-depth / GAMMA).exp()
    equal = (guess.argmax(-1) == choice).float()
    share = torch.stack([equal[depth == d].mean() for d in range(block)])
    return (weight * each).sum() / weight.sum(), share.detach()


def train(head: WhisperBlock, table: Tensor, windows: Windows, out: Path, seconds: float) -> None:
    learnt = {name: nn.Parameter(weight) for name, weight in head.tensors.items()}
    head = WhisperBlock(head.shape, learnt)
    # The position table is not a matrix of a layer; Muon is for those alone.
    named = {
        ("embed_" if n in ("positions", "masks") else "") + n.replace(".", "/"): p
        for n, p in learnt.items()
    }
    optimizers = Optimizers(nn.ParameterDict(named), peak=PEAK)
    progress_file = out / "progress.json"
    state: dict[str, Any] = (
        json.loads(progress_file.read_text())
        if progress_file.exists()
        else {"step": 0, "spent": 0.0}
    )
    step, spent = state["step"], state["spent"]
    rng, generator = np.random.default_rng(step), torch.Generator().manual_seed(step)
    start = saved = time.time() - spent
    saved, begun_at, shares, total = time.time(), step, [], 0.0

    def save() -> None:
        write_block(out, head)
        progress_file.write_text(json.dumps({"step": step, "spent": time.time() - start}))

    with (out / "training-log.jsonl").open("a") as log:
        while (progress := (time.time() - start) / seconds) < 1:
            lesson = windows.draw(rng)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value, share = loss(head, lesson, table, generator)
            value.backward()
            nn.utils.clip_grad_norm_(learnt.values(), 1.0)
            optimizers.step(rate(progress, step - begun_at, fall_from=FALL_FROM))
            step, total = step + 1, total + float(value.detach())
            shares.append(share)
            if step % NOTE_EVERY == 0:
                line = {"step": step, "minutes": round((time.time() - start) / 60, 2)}
                mean = torch.stack(shares).nanmean(0)
                line |= {"loss": round(total / len(shares), 4)}
                line |= {"equal": [round(e, 3) for e in mean.tolist()]}
                log.write(json.dumps(line) + "\n")
                log.flush()
                shares, total = [], 0.0
                windows.refresh()
            if time.time() - saved > SAVE_EVERY:
                save()
                saved = time.time()
        lesson = Lesson.of(windows.held_out)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            value, share = loss(head, lesson, table, generator)
        line = {"step": step, "held_out": round(float(value), 4)}
        log.write(json.dumps(line | {"equal": [round(e, 3) for e in share.tolist()]}) + "\n")
    save()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.block.train_block")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--written", type=Path, default=WORK)
    parser.add_argument("--out", type=Path, default=WORK / "head")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    whisper = load(resolve("tiny.en", None, "en"), choose("cpu"), network=False)
    target = whisper.target.state_dict()
    table = target["model.decoder.embed_tokens.weight"].float()
    if (options.out / "model.safetensors").exists():
        head = read_block(options.out)
    else:
        config, draft = whisper.target.config, whisper.drafts[0].model
        shape = BlockShape(
            width=config.d_model,
            heads=config.decoder_attention_heads,
            inner=config.decoder_ffn_dim,
            layers=draft.config.decoder_layers,
            positions=config.max_target_positions,
            block=BLOCK,
            taps=taps_of(config.decoder_layers),
            target_layers=config.decoder_layers,
            vocab=config.vocab_size,
        )
        head = begun(target, draft.state_dict(), shape)
    train(head, table, Windows(options.written), options.out, 60 * options.minutes)


if __name__ == "__main__":
    main()
