"""Maps between the ids of a draft and its target, and drafts behind such a map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import WhisperForCausalLM

from forescribe.speculative import ModelDrafter
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.vocabularies import (
    NONE,
    MappedGreedyVocabulary,
    MappedVocabulary,
    TokenMap,
    mapped,
)
from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.types import Draft
from tests.speculative.plain import with_ids
from tests.speculative.tiny import TinyModel

from ..native import cases
from ..native.cases import SLOTS, VOCAB, Seen, Shape, model, states

NATIVE = pytest.mark.native
FORMS = {"modules": WhisperDecoder, "lean": LeanWhisperDecoder, "native": NativeWhisperDecoder}
each_form = pytest.mark.parametrize(
    "form", [pytest.param(form, marks=NATIVE if form == "native" else ()) for form in FORMS]
)

# The draft's ids: two tokens of its own come first, the target's tokens follow in reverse, without its
# token 7, which is read as its token 8.
LACKS, STANDS_IN = 7, 8
THEIRS = [t for t in reversed(range(VOCAB)) if t != LACKS]
TO_TARGET = (NONE, NONE, *THEIRS)
TO_DRAFT = tuple(TO_TARGET.index(STANDS_IN if t == LACKS else t) for t in range(VOCAB))
MAP = TokenMap(TO_DRAFT, TO_TARGET)


def renumbered() -> Any:
    """The target under the draft's ids; its tokens without a partner are likely ones."""
    target = model(Shape())
    config = type(target.config)(**{**target.config.to_dict(), "vocab_size": len(TO_TARGET)})
    made = WhisperForCausalLM(config).eval()
    weights = {k: v.clone() for k, v in target.state_dict().items()}
    ids = torch.tensor([STANDS_IN if t == NONE else t for t in TO_TARGET])
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        weights[name] = weights[name][ids]
        weights[name][:2] *= 1.5
    made.load_state_dict(weights)
    return made


def draft(form: str, listed: tuple[int, ...] | None = None) -> MappedVocabulary:
    whisper = renumbered()
    return mapped(lambda head: FORMS[form](whisper, listed=head), MAP, listed)


@each_form
@torch.inference_mode()
def test_logits_are_those_of_the_partners_and_nothing_else_is_finite(form: str) -> None:
    made, plain = draft(form), WhisperDecoder(model(Shape()))
    tokens = torch.randint(0, VOCAB, (2, 6), generator=torch.Generator().manual_seed(1))
    tokens[tokens == LACKS] = STANDS_IN
    start, rows, node = torch.tensor([3, 3]), torch.arange(2), torch.tensor([2, 0])
    read = []
    for each in (made, plain):
        each.allocate(2, SLOTS)
        prompt = each.prefill(rows, tokens[:, :3], states(Shape(), 2), torch.tensor([[2], [1]]))
        read.append(prompt.logits)
        read.append(each.score(tokens[:, 3:], start, reach=SLOTS).logits)
    assert made.vocab_size == VOCAB
    first, ours, second, theirs = read
    has = torch.arange(VOCAB) != LACKS
    for found, expected in ((first, second), (ours, theirs)):
        assert found.shape == expected.shape
        assert bool((found[..., LACKS] == float("-inf")).all())
        torch.testing.assert_close(found[..., has], expected[..., has], rtol=0, atol=2e-5)
    unread = made.prefill(rows, tokens[:, :3], states(Shape(), 2)).logits
    assert unread.shape == (2, 0, VOCAB)
    made.score(tokens[:, 3:], start, reach=SLOTS)
    one = made.score_at(tokens[:, 3:], start, node, reach=SLOTS)
    expected = ours[torch.arange(2), node][:, None]
    torch.testing.assert_close(one[..., has], expected[..., has], rtol=0, atol=2e-5)
    assert made.listed is not None and made.listed.tolist() == [t for t in range(VOCAB) if has[t]]


def decoded(
    make: Callable[[], Any] | None, gamma: int, *, temperature: float = 0.0, confidence: float = 0.0
) -> tuple[dict[Any, tuple[int, ...]], list[Draft], float]:
    """The texts of ragged requests, more than fit; what was drafted; and the share that was kept."""
    drafter = None if make is None else Seen(ModelDrafter(make(), confidence=confidence))
    target = WhisperDecoder(model(Shape()))
    results, engine = cases.decoded(target, drafter, gamma, temperature=temperature)
    stats = engine.stats
    texts = {tag: r.tokens for tag, r in results.items()}
    rate = stats.accepted / stats.drafted if stats.drafted else 0.0
    return texts, [] if drafter is None else drafter.drafts, rate


@each_form
@pytest.mark.parametrize("how", [{}, {"confidence": 0.05}], ids=["fixed", "confidence"])
def test_texts_are_those_without_drafts_and_a_draft_that_agrees_is_kept(form: str, how) -> None:
    plain, _, _ = decoded(None, 0)
    assert max(map(len, plain.values())) > 12  # several rounds
    for gamma in (1, 4):
        texts, drafts, rate = decoded(lambda: draft(form), gamma, **how)
        assert texts == plain
        assert rate >= 0.9
        tokens = torch.cat([d.tokens.flatten() for d in drafts])
        assert bool(((tokens >= 0) & (tokens < VOCAB) & (tokens != LACKS)).all())


@pytest.mark.parametrize("form", ["lean", "modules"])
def test_sampled_rounds_draft_no_tokens_without_a_partner(form: str) -> None:
    plain, _, _ = decoded(None, 0, temperature=0.9)
    texts, drafts, rate = decoded(lambda: draft(form), 4, temperature=0.9)
    assert texts == plain and rate > 0.5
    tokens = torch.cat([d.tokens.flatten() for d in drafts])
    assert bool(((tokens >= 0) & (tokens < VOCAB) & (tokens != LACKS)).all())


@each_form
def test_a_cut_head_lists_the_drafts_own_ids(form: str) -> None:
    listed = (0, 5, 6, 9, *range(20, 50, 2))
    wanted = {TO_TARGET[i] for i in listed} - {NONE}
    made = draft(form, listed)
    assert made.listed is not None and set(made.listed.tolist()) == wanted
    plain, _, _ = decoded(None, 0)
    texts, drafts, _ = decoded(lambda: draft(form, listed), 4)
    assert texts == plain
    assert set(torch.cat([d.tokens.flatten() for d in drafts]).tolist()) <= wanted


@NATIVE
def test_native_drafts_are_those_of_the_loop_in_torch() -> None:
    assert isinstance(draft("native"), MappedGreedyVocabulary)
    assert not isinstance(draft("lean"), MappedGreedyVocabulary)
    ours, theirs = (decoded(lambda form=form: draft(form), 4) for form in ("native", "lean"))
    assert ours[0] == theirs[0] and ours[2] == theirs[2]


@st.composite
def maps(draw: st.DrawFn) -> TokenMap:
    V, W = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    shared = draw(st.integers(1, min(V, W)))
    ours = draw(st.permutations(range(V)))[:shared]
    theirs = draw(st.permutations(range(W)))[:shared]
    to_target = [NONE] * W
    to_draft = [draw(st.integers(0, W - 1)) for _ in range(V)]
    for target, own in zip(ours, theirs, strict=True):
        to_target[own], to_draft[target] = target, own
    return TokenMap(tuple(to_draft), tuple(to_target))


@given(maps(), st.data())
def test_partners_are_pairs_and_a_head_has_partners_only(
    ids: TokenMap, data: st.DataObject
) -> None:
    for own, target in enumerate(ids.to_target):
        assert (own in ids.partners) == (target != NONE)
        assert target == NONE or ids.to_draft[target] == own
    assert len({ids.to_target[own] for own in ids.partners}) == len(ids.partners)
    listed = data.draw(st.sets(st.sampled_from(range(len(ids.to_target)))))
    kept = sorted(listed & set(ids.partners))
    if kept:
        assert ids.proposed(listed) == tuple(kept)
    whole = ids.proposed(None)
    assert (whole is None) == (len(ids.partners) == len(ids.to_target))
    assert whole in (None, ids.partners)


@given(maps(), st.integers(0, 2**16))
def test_reading_and_writing_logits_agree_with_the_map(ids: TokenMap, seed: int) -> None:
    """By a loop over the tokens, for any map."""
    W, V = len(ids.to_target), len(ids.to_draft)
    tiny = TinyModel(vocab=W, width=6, seed=seed)
    made = mapped(lambda head: with_ids(tiny, range(W), head), ids)
    made.allocate(1, 8)
    text = [t % V for t in (seed, 3, 5)]
    made.prefill(torch.tensor([0]), torch.tensor([text[:2]]), [None])
    logits = made.score(torch.tensor([text[2:]]), torch.tensor([2]), reach=8).logits[0, -1]
    own = tiny.forward(torch.tensor([ids.to_draft[t] for t in text]))[-1]
    expected = torch.full((V,), float("-inf"))
    for theirs in ids.partners:
        expected[ids.to_target[theirs]] = own[theirs]
    torch.testing.assert_close(logits, expected)
