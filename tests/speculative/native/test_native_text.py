"""The bundled text pair through the engine: the same texts natively as with transformers' modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescribe.speculative.models.hub import path
from forescribe.speculative.requests import Sampling
from forescribe.text import TextGenerator
from forescribe.text.streaming import Options

pytestmark = pytest.mark.native

PROMPTS = (
    "Once upon a time there was a little girl",
    "The",
    "One day, a boy and his dog went to the park. They saw a big tree and",
    "Tom had a red ball.",
    "It was raining",
    "A cat sat on the mat and looked at the moon. The moon was",
    "Lily",
)
LENGTHS = (50, 7, 33, 1, 60, 20, 41)


def generator(
    engine: str, batch: int, gamma: int | None, draft_dtype: str | None = None
) -> TextGenerator:
    return TextGenerator.load(
        path("text"),
        path("text-draft"),
        batch=batch,
        gamma=gamma,
        device="cpu",
        engine=engine,
        draft_dtype=draft_dtype,
    )


def texts(made: TextGenerator, options: Options) -> list[tuple[int, ...]]:
    """The tokens of more texts than rows, of different lengths: rows are admitted and retired in between."""
    prompts = list(zip(PROMPTS, LENGTHS, strict=True))
    numbers = [
        made.submit(prompt, replace(options, max_tokens=length, seed=i))
        for i, (prompt, length) in enumerate(prompts)
    ]
    done = {}
    while not made.idle:
        for event in made.step():
            if event.completion is not None:
                done[event.number] = event.completion.ids
    return [done[number] for number in numbers]


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    """The greedy texts of transformers' modules without drafts, one at a time."""
    return texts(generator("modules", 1, 0), Options())


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("gamma", [0, 4, None], ids=["0", "4", "auto"])
def test_greedy_texts_are_those_of_the_modules(batch, gamma, plain):
    made = generator("native", batch, gamma)
    assert made.target.engine == "native"
    assert texts(made, Options()) == plain
    if gamma == 4:
        assert made.stats.accepted > 20


@pytest.mark.parametrize("gamma", [0, 4])
def test_sampled_texts_of_equal_seeds_are_those_of_the_modules(gamma):
    """With drafts in float32: a native draft would be bfloat16, whose proposals are drawn from other
    numbers. That keeps the distribution, and not the text of a seed."""
    options = Options(temperature=0.8, sampling=Sampling(top_k=40, top_p=0.95))
    theirs, ours = (
        texts(generator(name, 4, gamma, "float32"), options) for name in ("modules", "native")
    )
    assert ours == theirs
