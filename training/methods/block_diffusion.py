"""Drafts for a language model that denoises blocks: Spiffy (arXiv 2509.18085) and SimSD (2606.02544).

    OMP_NUM_THREADS=1 python -m training.methods.block_diffusion --minutes 12 # trains, or goes on; measures

The bundled text target learns to fill in masks: a block of four positions reads the blocks before it and
itself in both directions (as SDAR and BD3-LM do). A denoising step reveals one token, from left to right or
where the model is surest, so plain decoding takes four passes for a block. **Spiffy**: one pass reads
several states of a block, each as a copy that sees only itself and what lies before the block; the states
are those that the model's guesses lead to, and they count as long as its own steps do lead there.
**SimSD**: one pass reads the drafted tokens and one mask for each of them, in an order that replays the
steps. Figures: docs/methods/block-diffusion.md.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forescribe.distill.training import Optimizers, rate
from training.methods.heads import WORK, written
from training.paths import BUNDLED
from training.text import packing
from training.text.evaluate import Pair, prompts
from training.text.export import TARGET, opened
from training.text.tokenizer import prompt_of

BLOCK, MASK = 4, -1
ROWS, PEAK, HELD_OUT = 2, 1e-3, 100
WEIGHTS = WORK / "block-diffusion.safetensors"
State = list[int]  # the tokens of a block, MASK where none is known
Guess = Callable[[list[int], int], list[int]]


class Diffusion(nn.Module):
    """A Llama with a learnt vector for masks; `sees [B, N, N]` says what each position reads."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.mask = nn.Parameter(model.model.embed_tokens.weight.detach().mean(0))

    def forward(self, tokens: Tensor, positions: Tensor, sees: Tensor) -> Tensor:
        known = self.model.model.embed_tokens(tokens.clamp(min=0))
        embedded = torch.where((tokens == MASK)[..., None], self.mask, known)
        found = self.model.model(
            inputs_embeds=embedded,
            position_ids=positions,
            attention_mask=sees[:, None],
            use_cache=False,
        )
        states: Tensor = found.last_hidden_state
        return states


def loss(model: Diffusion, pack: packing.Pack, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The cross-entropy at masks, and whether the choice is right `[K]`. A row is read twice: as it is, and
    with one to four masks in every block, which reads the blocks before it as they are."""
    same = (pack.mask | pack.mask.transpose(2, 3))[:, 0]  # of one document
    block = pack.positions // BLOCK
    before = same & (block[:, None] < block[:, :, None])
    within = same & (block[:, None] == block[:, :, None])
    nothing = torch.zeros_like(same)
    sees = torch.cat([torch.cat([before | within, nothing], 2), torch.cat([before, within], 2)], 1)
    ranks = torch.rand(block.shape, generator=generator)
    rank = (within & (ranks[:, None] < ranks[:, :, None])).sum(2)  # among those of its block
    first = torch.where(
        pack.positions % BLOCK == 0, torch.rand(block.shape, generator=generator), 0
    )
    masked = (rank < 1 + (first[:, None] * within).sum(2) * BLOCK) & (pack.positions > 0)
    noised = torch.where(masked, MASK, pack.tokens)
    twice = pack.positions.repeat(1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model(torch.cat([pack.tokens, noised], 1), twice, sees)
        logits = model.model.lm_head(states[:, pack.tokens.shape[1] :][masked]).float()
    labels = pack.tokens[masked]
    return cross_entropy(logits, labels), logits.argmax(-1) == labels


def read(model: Diffusion, tokens: list[int], positions: list[int], sees: Tensor) -> Tensor:
    states = model(torch.tensor([tokens]), torch.tensor([positions]), sees[None])
    found: Tensor = model.model.lm_head(states[0])
    return found


def context(done: int, more: int) -> Tensor:
    """What the positions of finished blocks see, and `more` behind them, which see all finished ones."""
    block = torch.arange(done + more) // BLOCK
    sees = block[None] <= block[:, None]
    sees[:, done:] = False
    return sees


def states_pass(
    model: Diffusion, done: list[int], states: Sequence[State], *, follows: bool = False
) -> Tensor:
    """Logits `[K, BLOCK, V]` of states of the block behind `done`. With `follows` the last one is a state of
    the block behind the one before it, which has no masks then."""
    n, count = len(done), len(states)
    sees = context(n, BLOCK * count)
    owner = torch.arange(BLOCK * count) // BLOCK
    mine = owner[:, None] == owner
    if follows:
        mine |= (owner[:, None] == count - 1) & (owner == count - 2)
    sees[n:, n:] = mine
    positions = [*range(n), *(n + i for _ in states for i in range(BLOCK))]
    if follows:
        positions[-BLOCK:] = range(n + BLOCK, n + 2 * BLOCK)
    tokens = done + [token for state in states for token in state]
    return read(model, tokens, positions, sees)[n:].view(count, BLOCK, -1)


def replay_pass(model: Diffusion, done: list[int], state: State, drafts: State) -> Tensor:
    """SimSD: logits `[BLOCK, V]` at a mask for each place of a block, whose masked tokens are drafted. The
    places are revealed from left to right, t = 1, 2 ...; what is known has t = 0 and no mask. A drafted token
    of t reads the tokens up to t and the masks behind it, a mask those before t and the masks from t on."""
    n = len(done)
    t = torch.tensor([0 if token != MASK else 1 + i for i, token in enumerate(state)])
    sees = context(n, 2 * BLOCK)
    data, masks = slice(n, n + BLOCK), slice(n + BLOCK, n + 2 * BLOCK)
    hidden = t > 0
    sees[data, data] = t[None] <= t[:, None]
    sees[data, masks] = (t[None] > t[:, None]) & hidden
    sees[masks, data] = t[None] < t[:, None].clamp(min=1)
    sees[masks, masks] = ((t[None] >= t[:, None]) & hidden) | torch.eye(BLOCK, dtype=torch.bool)
    positions = [*range(n + BLOCK), *range(n, n + BLOCK)]
    return read(model, done + drafts + [MASK] * BLOCK, positions, sees)[masks]


def revealed(logits: Tensor, state: State, surest: bool) -> State:
    """The next state: the first masked place, or the surest one, with the model's choice."""
    chance, choice = logits.softmax(-1).max(-1)
    hidden = [i for i, token in enumerate(state) if token == MASK]
    place = max(hidden, key=lambda i: float(chance[i])) if surest else hidden[0]
    return [int(choice[i]) if i == place else token for i, token in enumerate(state)]


def begun(prompt: list[int]) -> tuple[list[int], State]:
    n = len(prompt) // BLOCK * BLOCK
    return prompt[:n], prompt[n:] + [MASK] * (BLOCK - len(prompt) + n)


@dataclass(frozen=True)
class Task:
    """How texts are written: up to `end`, or `limit` tokens, in whole blocks. Each way returns the text and
    the number of passes; finished blocks are read with the next pass."""

    model: Diffusion
    end: int
    limit: int
    surest: bool = False
    guess: Guess | None = None  # a draft model

    def goes_on(self, done: list[int], prompt: list[int]) -> bool:
        return len(done) < len(prompt) + self.limit and self.end not in done[len(prompt) :]

    def plain(self, prompt: list[int]) -> tuple[list[int], int]:
        (done, state), passes = begun(prompt), 0
        while self.goes_on(done, prompt):
            while MASK in state:
                logits, passes = states_pass(self.model, done, [state])[0], passes + 1
                state = revealed(logits, state, self.surest)
            done, state = done + state, [MASK] * BLOCK
        return done, passes

    def spiffy(self, prompt: list[int]) -> tuple[list[int], int]:
        """From a state's logits all its steps are guessed, and the states on the way are read together, with
        the next block behind the last of them. With a draft model (from left to right) the steps behind the
        first one are its tokens."""
        done, state = begun(prompt)
        logits, passes = states_pass(self.model, done, [state])[0], 1
        while self.goes_on(done, prompt):
            way = [revealed(logits, state, self.surest)]
            if self.guess is not None and MASK in way[0]:
                known = way[0][: way[0].index(MASK)]
                for token in self.guess(done + known, BLOCK - len(known)):
                    place = way[-1].index(MASK)
                    way.append([*way[-1][:place], token, *way[-1][place + 1 :]])
            while MASK in way[-1]:
                way.append(revealed(logits, way[-1], self.surest))
            found = states_pass(self.model, done, [*way, [MASK] * BLOCK], follows=True)
            at, passes = 0, passes + 1
            while at + 1 < len(way) and revealed(found[at], way[at], self.surest) == way[at + 1]:
                at += 1
            state, logits = way[at], found[at]
            if MASK not in state:
                done, state, logits = done + state, [MASK] * BLOCK, found[-1]
        return done, passes

    def simsd(self, prompt: list[int]) -> tuple[list[int], int]:
        """From left to right with a draft model; drafts are judged in the order of positions."""
        assert self.guess is not None
        (done, state), passes = begun(prompt), 0
        while self.goes_on(done, prompt):
            at = state.index(MASK)
            drafts = state[:at] + self.guess(done + state[:at], BLOCK - at)
            choice = replay_pass(self.model, done, state, drafts).argmax(-1).tolist()
            while at < BLOCK - 1 and choice[at] == drafts[at]:
                at += 1
            state, passes = [*drafts[:at], choice[at], *state[at + 1 :]], passes + 1
            if MASK not in state:
                done, state = done + state, [MASK] * BLOCK
        return done, passes


def train(model: Diffusion, texts: list[list[int]], seconds: float) -> None:
    optimizers = Optimizers(model, peak=PEAK)
    generator = torch.Generator().manual_seed(int(time.time()))
    source = packing.batches(texts[HELD_OUT:], ROWS, seed=int(time.time()))
    start, step = time.time(), 0
    while (progress := (time.time() - start) / seconds) < 1:
        now, right = loss(model, next(source), generator)
        now.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(rate(progress, step, fall_from=0.3))
        step += 1
        if step % 50 == 0:
            print(
                f"step {step}, {progress:.2f}: {now.item():.3f}, {float(right.float().mean()):.3f}",
                flush=True,
            )
    with torch.no_grad():
        now, right = loss(model, packing.pack(packing.rows(texts[:HELD_OUT])), generator)
    print(
        f"{step} steps; held out: loss {now.item():.3f}, {float(right.float().mean()):.3f} of masks right"
    )
    save_file({k: v for k, v in model.state_dict().items() if "lm_head" not in k}, WEIGHTS)


@torch.no_grad()
def measure(model: Diffusion, limit: int) -> None:
    pair = Pair.load()
    end = int(pair.tokenizer.eos_token_id)
    ids = pair.tokenizer([prompt_of(d) for d in prompts()], add_special_tokens=False)["input_ids"]

    def drafted(tokens: list[int], count: int) -> list[int]:
        made = list(tokens)
        for _ in range(count):
            made.append(int(pair.draft(torch.tensor([made])).logits[0, -1].argmax()))
        return made[len(tokens) :]

    task, surest = Task(model, end, limit), Task(model, end, limit, surest=True)
    with_draft = replace(task, guess=drafted)
    ways = {
        "left to right | plain": task.plain,
        "left to right | Spiffy": task.spiffy,
        "left to right | Spiffy's states, draft model": with_draft.spiffy,
        "left to right | SimSD, draft model": with_draft.simsd,
        "surest first | plain": surest.plain,
        "surest first | Spiffy": surest.spiffy,
    }
    print("| order | way | tokens per pass | texts equal plain | tokens equal at their place |")
    for name, way in ways.items():
        made = [way(list(p)) for p in ids]
        texts = [text[len(p) :] for (text, _), p in zip(made, ids, strict=True)]
        if name.endswith("plain"):
            reference = texts
        tokens, passes = sum(map(len, texts)), sum(n for _, n in made)
        both = list(zip(texts, reference, strict=True))
        same = sum(x == y for a, b in both for x, y in zip(a, b, strict=False)) / tokens
        equal = f"{sum(a == b for a, b in both)} of {len(both)} | {same:.3f}"
        print(f"| {name} | {tokens / passes:.3f} | {equal} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--limit", type=int, default=64, help="tokens of an answer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Diffusion(opened(BUNDLED / TARGET))
    if WEIGHTS.exists():
        model.load_state_dict(load_file(WEIGHTS), strict=False)
    if options.minutes:
        texts = written(180)
        random.Random(1).shuffle(texts)
        train(model, texts, 60 * options.minutes)
    measure(model.eval(), options.limit)


if __name__ == "__main__":
    main()
