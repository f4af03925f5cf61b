"""Whisper block heads in the engine: nothing is lost, and every draft is what the head's tensors give."""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from transformers import WhisperForConditionalGeneration

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
from forescribe.speculative.requests import Sampling
from forescribe.speculative.rounds.accept import BlockVerification, TokenRejection
from forescribe.speculative.testing import TinyModel
from tests.speculative.models.whispers import (
    EOS,
    FRAMES,
    SOT,
    VOCAB,
    config,
    encoder_states,
    forward,
    whisper,
)
from tests.speculative.rounds.test_graph import Watch, rounds

from .test_head_drafts import Alternating, Watched
from .tiny_blocks import SHAPE, block_head, naive_drafts

GAMMA = 3
FIRST = 70  # the second token of a prompt says which request it is
ROWS, ROUND = 3, 4
SMALL = 5  # tokens of the vocabulary whose texts are counted
ENGINES = [
    pytest.param(ModelEngine.NATIVE, marks=pytest.mark.native),
    ModelEngine.LEAN,
    ModelEngine.MODULES,
]


def drafter(**options: Any) -> WhisperBlockDrafter:
    return WhisperBlockDrafter(block_head(), sources=FRAMES, **options)


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


@pytest.mark.parametrize("schedule", [Fixed(GAMMA), Alternating()], ids=["drafts", "stretches"])
@pytest.mark.parametrize("form", ENGINES)
def test_every_draft_is_what_the_tensors_give(form: ModelEngine, schedule: Any) -> None:
    watched = Watched(drafter())
    found = texts(engine(watched, 3, schedule, form), requests())
    assert found == texts(engine(None, 3, Fixed(0), form), requests())
    assert len(watched.seen) > 8
    for text, drafts in watched.seen:
        assert drafts == naive(watched.drafter.head, text, len(drafts)), text


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(1, 7),
    st.integers(1, 4),
)
def test_prompts_and_drafts_of_all_lengths_change_nothing(
    sizes: list[tuple[int, int]], gamma: int, batch: int
) -> None:
    asked = [
        Request(
            tuple((7 * i + 3 * j) % VOCAB for j in range(length)),
            encoder_states=encoder_states(i),
            max_new_tokens=new,
            tag=i,
        )
        for i, (length, new) in enumerate(sizes)
    ]
    found = texts(engine(drafter(), batch, Fixed(gamma), ModelEngine.AUTO), asked)
    assert found == texts(engine(None, batch, Fixed(0), ModelEngine.AUTO), asked)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_row_equals_decoding_it_alone(temperature: float) -> None:
    shaped = Sampling(top_k=20, repetition=1.2)
    asked = requests(temperature=temperature, sampling=shaped)
    together = {r.request.tag: r for r in engine(drafter()).run(asked)}
    for request in asked:
        (result,) = engine(drafter(), 1).run([request])
        found = together[request.tag]
        assert result.draft_error is None
        assert (result.tokens, result.accepted) == (found.tokens, found.accepted)


def test_texts_reach_the_last_position() -> None:
    asked = [Request((SOT, FIRST + n), encoder_states=encoder_states(n), tag=n) for n in range(4)]
    never = (VOCAB - 1,)
    found = texts(engine(drafter(), eos=never), asked)
    assert found == texts(engine(None, schedule=Fixed(0), eos=never), asked)
    assert max(len(text) for text in found.values()) > 30


@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_sampled_texts_of_several_rounds_have_the_targets_distribution(rule: type) -> None:
    count, length, states, prompt = 3000, 3, encoder_states(0), (1, 4, 2)
    model = _small()
    head = block_head(vocab=SMALL)
    made = Engine(
        whisper_decoder(model, engine=ModelEngine.LEAN),
        WhisperBlockDrafter(head, sources=FRAMES),
        batch=64,
        eos=(),
        schedule=Fixed(1),
        sampled=rule(),
    )
    asked = [
        Request(
            prompt,
            encoder_states=states,
            max_new_tokens=length,
            temperature=1.0,
            seed=n,
            tag=n,
        )
        for n in range(count)
    ]
    seen = Counter(texts(made, asked).values())
    assert 0.1 < made.stats.acceptance_rate < 0.95
    chances = {(): 1.0}
    for _ in range(length):
        chances = {
            (*text, token): chance * share
            for text, chance in chances.items()
            for token, share in enumerate(
                forward(model, states, torch.tensor([*prompt, *text]))[-1].softmax(-1).tolist()
            )
        }
    many = [text for text, chance in chances.items() if chance * count >= 5]
    statistic = sum(
        (seen[text] - chances[text] * count) ** 2 / (chances[text] * count) for text in many
    )
    rest = max(0.0, count * (1 - sum(chances[text] for text in many)))
    others = count - sum(seen[text] for text in many)
    assert len(many) > 10 and rest < 0.2 * count
    assert abs(others - rest) < 4 * rest**0.5 + 1
    assert chi2.sf(statistic, len(many) - 1) > 1e-3


def _small() -> Any:
    made = config(2, 40)
    made.update({"vocab_size": SMALL, "init_std": 0.15})
    for name in ("pad", "bos", "eos"):
        setattr(made, f"{name}_token_id", 0)
    made.decoder_start_token_id = 1
    torch.manual_seed(2)
    return WhisperForConditionalGeneration(made).eval()


@pytest.mark.parametrize("kind", ["greedy", "sampled", "shaped"])
def test_no_operator_of_a_round_syncs_or_changes_shape(kind: str) -> None:
    shaped = Sampling(top_k=9, top_p=0.9, min_p=0.01, repetition=1.2, presence=0.1, frequency=0.1)
    made = engine(drafter(), ROWS, Fixed(ROUND))
    for request in requests(
        ROWS,
        temperature=0.0 if kind == "greedy" else 0.9,
        sampling=shaped if kind == "shaped" else Sampling(),
    ):
        made.submit(request)
    with torch.inference_mode():
        made._scheduler._admit()
    step, traces = rounds(made), []
    for _ in range(4):
        with torch.no_grad(), Watch() as watch:
            step()
        traces.append(watch.trace)
    assert len(traces[0]) > 100
    assert all(trace == traces[0] for trace in traces[1:])


def test_a_head_in_bfloat16_changes_no_token() -> None:
    head = block_head().to(torch.device("cpu"), torch.bfloat16)
    found = texts(engine(WhisperBlockDrafter(head, sources=FRAMES)), requests())
    assert found == texts(engine(None, schedule=Fixed(0)), requests())


def test_drafts_end_where_the_head_doubts() -> None:
    whole, ended = engine(drafter()), engine(drafter(confidence=0.9))
    assert texts(whole, requests()) == texts(ended, requests())
    assert ended.stats.drafted < whole.stats.drafted


def test_what_does_not_fit_is_refused() -> None:
    other = block_head(vocab=VOCAB + 1)
    with pytest.raises(ValueError, match=f"{VOCAB + 1} tokens, the target {VOCAB}"):
        engine(WhisperBlockDrafter(other, sources=FRAMES))
    with pytest.raises(ValueError, match="confidence is 1.5"):
        drafter(confidence=1.5)
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
