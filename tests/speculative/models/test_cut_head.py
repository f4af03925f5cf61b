"""Drafts with a cut head: listed tokens have the logits of the whole head, and texts are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from forescribe.speculative import ModelDrafter
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.requests import Sampling

from ..native import cases
from ..native.cases import SLOTS, VOCAB, Seen, Shape, model, states

LISTED = (0, 1, *range(3, 53, 2))
NATIVE = pytest.mark.native
NONE = float("-inf")


def native_bfloat16(draft: Any, **given: Any) -> Any:
    return NativeWhisperDecoder(draft, stored=torch.bfloat16, **given)


def whisper() -> Any:
    return model(Shape())


FORMS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "whisper modules": (WhisperDecoder, whisper),
    "whisper lean": (LeanWhisperDecoder, whisper),
    "whisper native": (NativeWhisperDecoder, whisper),
    "whisper native bfloat16": (native_bfloat16, whisper),
}
each_form = pytest.mark.parametrize(
    "form", [pytest.param(form, marks=NATIVE if "native" in form else ()) for form in FORMS]
)


def adapter(form: str, listed: tuple[int, ...] | None) -> Any:
    kind, draft = FORMS[form]
    return kind(draft(), listed=listed)


@torch.inference_mode()
def readings(each: Any, tokens: Tensor) -> list[Tensor]:
    """Logits of a prompt, of three tokens behind it, and of one of those alone."""
    each.allocate(2, SLOTS)
    start, rows = torch.tensor([3, 3]), torch.arange(2)
    found = [each.prefill(rows, tokens[:, :3], states(Shape(), 2)).logits]
    found += [each.score(tokens[:, 3:], start, reach=SLOTS).logits]
    if hasattr(each, "score_at"):
        found += [each.score_at(tokens[:, 3:], start, torch.tensor([2, 0]), reach=SLOTS)]
    return found


@each_form
def test_listed_tokens_have_the_logits_of_the_whole_head(form: str) -> None:
    made = [adapter(form, listed) for listed in (LISTED, None)]
    tokens = torch.randint(0, VOCAB, (2, 6), generator=torch.Generator().manual_seed(1))
    read = [readings(each, tokens) for each in made]
    for cut, whole in zip(*read, strict=True):
        assert cut.shape == whole.shape
        rare = torch.ones(cut.shape[-1], dtype=torch.bool).index_fill_(
            0, torch.tensor(LISTED), False
        )
        assert bool((cut[..., rare] == NONE).all())
        torch.testing.assert_close(cut[..., LISTED], whole[..., LISTED], rtol=0, atol=2e-5)


def decoded(
    form: str, listed: tuple[int, ...] | None, gamma: int, *, sampled: bool = False, **given: Any
) -> tuple[dict[Any, tuple[int, ...]], list[Tensor], int]:
    """The texts of ragged requests, more than fit; all drafted tokens; and how many were accepted."""
    drafter = Seen(ModelDrafter(adapter(form, listed), **given))
    how = {"temperature": 0.9, "sampling": Sampling(top_k=9, repetition=1.1)} if sampled else {}
    results, _ = cases.decoded(WhisperDecoder(model(Shape())), drafter, gamma, **how)
    texts = {tag: r.tokens for tag, r in results.items()}
    drafts = [draft.tokens for draft in drafter.drafts]
    return texts, drafts, sum(r.accepted for r in results.values())


@pytest.mark.parametrize("given", [{}, {"confidence": 0.05}], ids=["fixed", "confidence"])
@each_form
def test_greedy_texts_are_those_without_drafts_and_only_listed_tokens_are_drafted(
    form: str, given: dict[str, float]
) -> None:
    plain, _, _ = decoded(form, None, 0)
    for gamma in (4,) if given else (1, 4):
        texts, drafts, accepted = decoded(form, LISTED, gamma, **given)
        assert texts == plain
        assert drafts and accepted
        assert torch.isin(torch.cat([d.flatten() for d in drafts]), torch.tensor(LISTED)).all()


@pytest.mark.parametrize("form", ["whisper lean", "whisper modules"])
def test_sampled_texts_are_those_without_drafts_too(form: str) -> None:
    texts, drafts, accepted = decoded(form, LISTED, 4, sampled=True)
    plain, _, _ = decoded(form, None, 0, sampled=True)
    assert texts == plain and accepted
    assert torch.isin(torch.cat([d.flatten() for d in drafts]), torch.tensor(LISTED)).all()
