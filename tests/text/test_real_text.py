"""A published text model: drafts change no token of what transformers writes."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[int, ...]]:
    folder = model(NAME)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = TextGenerator.load(folder, None, device="cpu", dtype="float32", gamma=0, context=128)
    found = {}
    for prompt in PROMPTS:
        ids = torch.tensor([tokens.encode(prompt)])
        with torch.inference_mode():
            rows = plain.generate(ids, max_new_tokens=NEW, do_sample=False, num_beams=1)
        found[prompt] = tuple(rows[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.parametrize(
    ("batch", "gamma", "engine", "prompts"),
    [
        (1, 5, "auto", PROMPTS[::4]),
        (8, 5, "auto", PROMPTS),
        (8, None, "auto", PROMPTS),
        (8, 4, "lean", PROMPTS),
    ],
)
def test_drafts_change_no_token_over_28_prompts(expected, batch, gamma, engine, prompts) -> None:
    """One at a time, over seven of them, of all forms."""
    generator = TextGenerator.load(
        model(NAME),
        "ngram",
        device="cpu",
        dtype="float32",
        batch=batch,
        gamma=gamma,
        engine=engine,
        context=128,
    )
    written = generator.generate(prompts, Options(max_tokens=NEW))
    assert len(written) == (28 if batch > 1 else 7)
    for prompt, completion in zip(prompts, written, strict=True):
        assert completion.ids == expected[prompt], prompt
    assert generator.stats.drafted > 0
