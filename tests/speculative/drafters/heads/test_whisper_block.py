"""Whisper block heads in the engine: nothing is lost, and every draft is what the head's tensors give."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Request
from forescribe.speculative.drafters.heads import WhisperBlockDrafter
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.engines import ModelEngine, whisper_decoder
from forescribe.speculative.models.heads.whisper_block import (
    WhisperBlock,
    is_block,
    read_block,
    write_block,
)
from forescribe.speculative.testing import TinyModel
from tests.speculative.models.whispers import (
    EOS,
    FRAMES,
    SOT,
    VOCAB,
    encoder_states,
    whisper,
)

from .test_head_drafts import Planned, Watched
from .tiny_blocks import SHAPE, block_head, naive_drafts

GAMMA = 3
FIRST = 70  # the second token of a prompt says which request it is
ENGINES = [
    pytest.param(ModelEngine.NATIVE, marks=pytest.mark.native),
    ModelEngine.LEAN,
    ModelEngine.MODULES,
]


def drafter() -> WhisperBlockDrafter:
    return WhisperBlockDrafter(block_head(), sources=FRAMES)


def engine(
    drafts: Any,
    batch: int = 3,
    schedule: Any = None,
    form: ModelEngine = ModelEngine.LEAN,
    **more: Any,
) -> Engine:
    return Engine(
        whisper_decoder(whisper(), engine=form),
        drafts,
        batch=batch,
        schedule=schedule or Fixed(GAMMA),
        **{"eos": (EOS,), **more},
    )


def requests(count: int = 7, **fields: Any) -> list[Request]:
    return [
        Request(
            (SOT, FIRST + n, *range(5, 5 + 3 * n % 8)),
            encoder_states=encoder_states(n),
            max_new_tokens=6 + 5 * n % 17,
            seed=n,
            tag=n,
            **fields,
        )
        for n in range(count)
    ]


def texts(made: Engine, asked: list[Request]) -> dict[Any, Any]:
    results = list(made.run(asked))
    assert len(results) == len(asked)
    assert all(r.error is None and r.draft_error is None for r in results)
    return {r.request.tag: r.tokens for r in results}


@functools.cache
def _copy() -> Any:
    """transformers hooks a model that returns its states, and lean decoders refuse models with hooks."""
    return copy.deepcopy(whisper())


@torch.no_grad()
def naive(head: WhisperBlock, text: list[int], count: int) -> list[int]:
    states = encoder_states(text[1] - FIRST)  # its request's
    found = _copy().model.decoder(
        input_ids=torch.tensor([text]),
        encoder_hidden_states=states[None],
        use_cache=False,
        output_hidden_states=True,
    )
    taps = torch.stack([found.hidden_states[i][0, :-1] for i in head.shape.taps], 1)
    return naive_drafts(head, whisper().proj_out.weight, taps, states, text, count)


@pytest.mark.parametrize("schedule", [Fixed(GAMMA), Planned(GAMMA, 0)], ids=["drafts", "stretches"])
@pytest.mark.parametrize("form", ENGINES)
def test_every_draft_is_what_the_tensors_give(form: ModelEngine, schedule: Any) -> None:
    watched = Watched(drafter())
    found = texts(engine(watched, 3, schedule, form), requests())
    assert found == texts(engine(None, 3, Fixed(0), form), requests())
    assert len(watched.seen) > 8
    for text, drafts in watched.seen:
        assert drafts == naive(watched.drafter.head, text, len(drafts)), text


def test_texts_reach_the_last_position() -> None:
    asked = [Request((SOT, FIRST + n), encoder_states=encoder_states(n), tag=n) for n in range(4)]
    never = (VOCAB - 1,)
    found = texts(engine(drafter(), eos=never), asked)
    assert found == texts(engine(None, schedule=Fixed(0), eos=never), asked)
    assert max(len(text) for text in found.values()) > 30


def test_a_head_in_bfloat16_changes_no_token() -> None:
    head = block_head().to(torch.device("cpu"), torch.bfloat16)
    found = texts(engine(WhisperBlockDrafter(head, sources=FRAMES)), requests())
    assert found == texts(engine(None, schedule=Fixed(0)), requests())


def test_what_does_not_fit_is_refused() -> None:
    other = block_head(vocab=VOCAB + 1)
    with pytest.raises(ValueError, match=f"{VOCAB + 1} tokens, the target {VOCAB}"):
        engine(WhisperBlockDrafter(other, sources=FRAMES))
    tiny = WhisperBlockDrafter(block_head(vocab=TinyModel().vocab_size), sources=FRAMES)
    with pytest.raises(LoadError, match="TinyModel does not share its embeddings"):
        tiny.bind(TinyModel())


def test_a_head_is_read_as_it_was_written(tmp_path: Path) -> None:
    head = block_head()
    write_block(tmp_path, head)
    found = read_block(tmp_path)
    assert is_block(tmp_path) and found.shape == SHAPE
    for name, tensor in head.tensors.items():
        assert found.tensors[name].equal(tensor.half().float())


def _change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "whisper"}, "does not say forescribe_whisper_block"),
        ({"block": None}, "lacks block"),
        ({"taps": [0, "a"]}, "no whole numbers"),
        ({"taps": [0, 2]}, "not of a target of 2 layers"),
        ({"taps": [1, 1, 0]}, "twice"),
        ({"heads": 3}, "cannot have these sizes"),
        ({"inner": 25}, "layers.0.up.weight is"),
        ({"layers": 3}, "lacks layers.2"),
        ({"layers": 1}, "layers.1.*does not use"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_block(tmp_path, block_head())
    _change(tmp_path, **changes)
    with pytest.raises(LoadError, match=message):
        read_block(tmp_path)


def test_a_folder_without_a_head_is_none(tmp_path: Path) -> None:
    assert not is_block(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert not is_block(tmp_path)
    with pytest.raises(LoadError, match="holds no readable block head"):
        read_block(tmp_path)
