"""A published text model: drafts change no token of what transformers writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from forescribe.text import Options, TextGenerator
from tests.real import model

pytestmark = pytest.mark.weights

NAME = "smollm2-135m"
NEW = 24

SUBJECTS = (
    "a lighthouse",
    "the price of bread",
    "a lost umbrella",
    "copper wire",
    "the moon",
    "bees",
    "ink",
)
FORMS = (
    "Write one sentence about {}.",
    'Give a JSON object with the keys "name" and "use" for {}.',
    "def describe():\n    # returns a text about {}\n",
    "{0} {0} {0}: repeat the words above, then stop.",
)
PROMPTS = [form.format(subject) for form in FORMS for subject in SUBJECTS]
ONE_OF_EACH_FORM = PROMPTS[:: len(SUBJECTS)]


@pytest.fixture(scope="module")
def plain() -> Any:
    return AutoModelForCausalLM.from_pretrained(model(NAME), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def target() -> Callable[[str], TextGenerator]:
    """The model by an engine, read once."""

    @cache
    def load(engine: str) -> TextGenerator:
        return TextGenerator.load(model(NAME), device="cpu", dtype="float32", engine=engine)

    return load


@pytest.fixture(scope="module")
def is_greedy(plain) -> Callable[[tuple[int, ...], tuple[int, ...]], bool]:
    """Whether transformers would have written these tokens behind a prompt: each is the choice of its forward
    over those before it, which one pass says for all."""
    end = plain.generation_config.eos_token_id

    @cache
    def check(prompt: tuple[int, ...], written: tuple[int, ...]) -> bool:
        with torch.inference_mode():
            logits = plain(torch.tensor([[*prompt, *written]])).logits[0]
        chosen = tuple(logits[len(prompt) - 1 : -1].argmax(-1).tolist())
        ended = len(written) == NEW or written[-1:] == (end,)
        return chosen == written and ended and end not in written[:-1]

    return check


@pytest.fixture(scope="module")
def generated(plain) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """What transformers' own `generate` writes behind a prompt."""

    @cache
    def generate(prompt: tuple[int, ...]) -> tuple[int, ...]:
        with torch.inference_mode():
            rows = plain.generate(
                torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, num_beams=1
            )
        return tuple(rows[0, len(prompt) :].tolist())

    return generate


@pytest.mark.parametrize(
    ("draft", "batch", "gamma", "engine", "prompts"),
    [
        ("ngram", 1, 5, "auto", PROMPTS[::4]),
        ("ngram", 8, 5, "auto", PROMPTS[::2]),
        pytest.param("ngram", 8, None, "auto", PROMPTS[::2], marks=pytest.mark.nightly),
        pytest.param("ngram", 8, 5, "auto", PROMPTS, marks=pytest.mark.nightly),
        pytest.param("ngram", 8, 4, "lean", PROMPTS[::2], marks=pytest.mark.nightly),
        pytest.param("ngram", 4, 8, "auto", PROMPTS[::2], marks=pytest.mark.nightly),
    ],
)
def test_drafts_change_no_token(
    target, generated, is_greedy, draft, batch, gamma, engine, prompts
) -> None:
    """Over some of 28 prompts, of all forms; each night over all."""
    read = target(engine)
    generator = TextGenerator(
        read.target, draft, device=read.device, batch=batch, gamma=gamma, context=128
    )
    written = generator.generate(prompts, Options(max_tokens=NEW))
    assert len(written) == len(prompts) >= 7
    for prompt, completion in zip(prompts, written, strict=True):
        ids = tuple(generator.encode(prompt))
        assert is_greedy(ids, completion.ids), prompt
        if prompt in ONE_OF_EACH_FORM:
            assert completion.ids == generated(ids), prompt
    assert generator.stats.drafted > 0
