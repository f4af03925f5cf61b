"""A text draft in another number format than its target changes no text, on any engine."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative.models import hub
from forescribe.text.generator import TextGenerator
from forescribe.text.streaming import Options

PROMPTS = ('Define "song".', "Write the minutes of the sales meeting on March 3.")


def generator(draft_dtype: str | None = None, engine: str | None = None, **settings: object):
    return TextGenerator.load(
        hub.path("text"),
        hub.path("text-draft"),
        device="cpu",
        network=False,
        engine=engine,
        draft_dtype=draft_dtype,
        **settings,
    )


@pytest.mark.parametrize(
    ("engine", "draft_dtype"),
    [
        pytest.param("native", "float32", marks=pytest.mark.native),
        pytest.param("native", "bfloat16", marks=pytest.mark.native),
        ("lean", "bfloat16"),
        ("modules", "bfloat16"),
    ],
)
def test_drafts_in_any_format_change_no_text(engine, draft_dtype):
    made = generator(draft_dtype, engine, gamma=4)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    options = Options(max_tokens=60)
    texts = [text.ids for text in made.generate(chats, options)]
    assert texts == [text.ids for text in made.plain().generate(chats, options)]
    assert sum(map(len, texts)) > 60
    assert made.draft.stored is getattr(torch, draft_dtype)
    assert made.target.stored is torch.float32
    assert made.stats.acceptance_rate > 0.4


def test_the_drafts_format_is_the_fastest_unless_one_is_given():
    made = generator()
    able = torch.cpu.get_capabilities().get("avx512_bf16", False)
    native = made.draft.engine == "native"
    assert (made.draft.stored is torch.bfloat16) == (native and able)
    assert generator(engine="lean").draft.stored is torch.float32
