"""The engine on unmodified transformers text models, against their own decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from tests.speculative.models.causal_lms import EOS, FAMILIES, POSITIONS, VOCAB, causal_lm, forward

RAGGED = ((5,), (7, 8, 9), tuple(range(20, 37)), (3, 3), tuple(range(50, 29, -1)), (40, 41, 42, 43))
tokens = st.integers(2, VOCAB - 1)
prompts = st.lists(tokens, min_size=1, max_size=POSITIONS - 2).map(tuple)


def is_greedy(model, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    """Whether plain decoding would have written these tokens: each is the choice of the model's own
    forward over those before it, and they end where a text ends. One forward says it for all."""
    text = torch.tensor((*prompt, *tokens))
    chosen = tuple(forward(model, text)[len(prompt) - 1 : -1].argmax(-1).tolist())
    ended = tokens[-1] == EOS or len(text) == POSITIONS
    return chosen == tokens and ended and EOS not in tokens[:-1]


def drafter(kind: str, family: str, engine=ModelEngine.AUTO):
    if kind == "model":
        return ModelDrafter(causal_decoder(causal_lm(family, layers=1, seed=1), engine=engine))
    return NgramDrafter() if kind == "ngram" else None


LEAN = ("llama", "qwen2", "qwen2 with a window", "qwen3", "mistral", "mistral with a window")
ENGINES = [
    *((family, ModelEngine.MODULES) for family in FAMILIES),
    *((family, ModelEngine.LEAN) for family in LEAN),
]


KINDS = [
    *((family, which, "model") for family, which in ENGINES),
    # One token at a time is what the draft reads, too, and what an n-gram drafter proposes is scored as what
    # a model proposes: where masks and layouts differ.
    *((family, ModelEngine.MODULES, "none") for family in ("llama", "gemma3_text", "gpt2")),
    *((family, ModelEngine.LEAN, "none") for family in ("qwen2 with a window", "qwen3", "mistral")),
    ("llama", ModelEngine.MODULES, "ngram"),
    ("mistral with a window", ModelEngine.LEAN, "ngram"),
]


@pytest.mark.parametrize(("family", "which", "kind"), KINDS)
def test_ragged_prompts_in_fewer_rows_are_the_models_own_texts(family, which, kind):
    """Up to the last position, far behind the sliding windows, in rows that others had before."""
    model = causal_lm(family)
    made = drafter(kind, family, which)
    engine = Engine(
        causal_decoder(model, engine=which),
        made,
        batch=4,
        eos=(EOS,),
        schedule=Fixed(4 if made else 0),
    )
    results = list(engine.run(Request(prompt) for prompt in RAGGED))
    assert {result.request.prompt for result in results} == set(RAGGED)
    assert all(is_greedy(model, result.request.prompt, result.tokens) for result in results)
    assert engine.stats.drafted > 50 or not made


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral with a window", "gpt2"])
@settings(max_examples=5)
@given(
    st.lists(st.tuples(prompts, st.sampled_from([0.0, 0.7])), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from([1, 5]),
)
def test_every_row_equals_decoding_it_alone(family, work, batch, gamma):
    """At temperature 0; above it a row's text depends on the drafts, but not on who shares the batch."""
    model = causal_lm(family)

    def run(work, batch):
        engine = Engine(
            causal_decoder(model),
            drafter("model", family),
            batch=batch,
            eos=(EOS,),
            schedule=Fixed(gamma),
        )
        return {r.request.tag: r for r in engine.run(work)}

    requests = [
        Request(prompt, temperature=temperature, seed=i, tag=i)
        for i, (prompt, temperature) in enumerate(work)
    ]
    together = run(requests, batch)
    for request in requests:
        tokens = together[request.tag].tokens
        if request.temperature == 0:
            assert is_greedy(model, request.prompt, tokens)
        else:
            assert tokens == run([request], 1)[request.tag].tokens


def test_fewer_positions_than_the_model_has():
    model = causal_lm("llama")
    engine = Engine(causal_decoder(model, 20), batch=1, eos=())
    (result,) = engine.run([Request((5, 6, 7))])
    assert len(result.tokens) == 17
    with pytest.raises(LoadError, match="llama has 40 positions, not 41"):
        causal_decoder(model, 41)
