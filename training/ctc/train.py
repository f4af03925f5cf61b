"""Fit a CTC head of the target's word pieces on stored encoder states; the encoder is not touched.

    python -m training.ctc.train --minutes 10

The head sees the posteriors of the character head that was trained with the encoder, and a projection of
the states; convolutions over time collect a piece, and the target's own token embedding is the output
layer, so that about 90,000 parameters have to be stored. Blanks have an output of their own. The last file
of windows is held out, and the share of its errors per token is printed every minute.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import ctc_loss, gelu, logsigmoid

from training.paths import BUNDLED, MADE
from training.sentences import vocabulary

HIDDEN, LAYERS, KERNEL = 96, 3, 9
RATE, BATCH = 3e-3, 4


class Head(nn.Module):
    """States [B, S, D] to log-probabilities [B, S / 2, 1 + pieces], blank first."""

    embedding: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, characters: dict[str, Tensor], embedding: Tensor) -> None:
        super().__init__()
        width = embedding.shape[1]
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("weight", characters["weight"].float(), persistent=False)
        self.register_buffer("bias", characters["bias"].float(), persistent=False)
        self.read = nn.Linear(width + len(characters["bias"]), HIDDEN)
        self.depth = nn.ModuleList(
            nn.Conv1d(HIDDEN, HIDDEN, KERNEL, 1 + (n == 0), KERNEL // 2, groups=HIDDEN)
            for n in range(LAYERS)
        )
        self.point = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.norm = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS))
        self.write = nn.Linear(HIDDEN, width)
        self.blank = nn.Linear(HIDDEN, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.offset = nn.Parameter(torch.zeros(len(embedding)))

    def forward(self, states: Tensor) -> Tensor:
        spelt = (states @ self.weight.T + self.bias).softmax(-1)
        x = self.read(torch.cat([states, spelt], -1))
        for depth, point, norm in zip(self.depth, self.point, self.norm, strict=True):
            y = depth(x.transpose(1, 2)).transpose(1, 2)
            x = (x[:, ::2] if y.shape[1] < x.shape[1] else x) + point(gelu(norm(y)))
        pieces = self.scale * (self.write(x) @ self.embedding.T) + self.offset
        blank = self.blank(x)
        some = pieces.log_softmax(-1) + logsigmoid(-blank)
        return torch.cat([logsigmoid(blank), some], -1)


def collapsed(best: list[int]) -> list[int]:
    """The pieces of the best class at each place."""
    return [now - 1 for now, last in zip(best, [0, *best], strict=False) if now not in (0, last)]


def distance(a: list[int], b: list[int]) -> int:
    """Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def stored(folder: Path) -> tuple[list[np.ndarray], list[list[int]]]:
    """States [S, D] float16 and text tokens of all windows."""
    states, texts = [], []
    for path in sorted(folder.glob("?-*.npz")):
        with np.load(path) as file:
            ends = file["lengths"].cumsum()
            tokens = file["tokens"].astype(int).tolist()
            states += list(file["states"])
        texts += [tokens[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return states, texts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.ctc.train")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--data", type=Path, default=MADE / "ctc")
    parser.add_argument("--out", type=Path, default=MADE / "ctc" / "head.safetensors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = load_file(BUNDLED / "demo" / "model.safetensors")
    embedding = target["model.decoder.embed_tokens.weight"][: vocabulary.PIECES].float()
    head = Head(load_file(BUNDLED / "demo" / "ctc_head.safetensors"), embedding)
    print(sum(p.numel() for p in head.parameters()), "parameters")
    states, texts = stored(options.data)
    kept = len(states) - 16
    adamw = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=0.01)
    rng, start, step, shown = np.random.default_rng(0), time.time(), 0, 0
    while (progress := (time.time() - start) / 60 / options.minutes) < 1:
        chosen = rng.choice(kept, BATCH, replace=False)
        x = torch.from_numpy(np.stack([states[n] for n in chosen])).float()
        logs = head(x).transpose(0, 1)
        labels = torch.tensor([token + 1 for n in chosen for token in texts[n]])
        lengths = torch.tensor([len(texts[n]) for n in chosen])
        places = torch.full((BATCH,), len(logs))
        loss = ctc_loss(logs, labels, places, lengths, reduction="sum", zero_infinity=True)
        (loss / lengths.sum().clamp_min(1)).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for group in adamw.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50, 2 * (1 - progress))
        adamw.step()
        adamw.zero_grad()
        step += 1
        if time.time() - start > 60 * shown:
            shown += 1
            wrong = total = 0
            with torch.no_grad():
                for n in range(kept, len(states)):
                    best = head(torch.from_numpy(states[n]).float()[None])[0].argmax(-1).tolist()
                    wrong, total = (
                        wrong + distance(collapsed(best), texts[n]),
                        total + len(texts[n]),
                    )
            print(
                f"step {step} loss {float(loss.detach() / lengths.sum()):.3f} errors {wrong / total:.3f}",
                flush=True,
            )
    save_file({n: v.half().contiguous() for n, v in head.state_dict().items()}, options.out)


if __name__ == "__main__":
    main()
