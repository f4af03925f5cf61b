"""The bundled text pair: stored in 8 bits, exact with its draft, and worth drafting for."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.device import choose
from forescribe.speculative.models import hub
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.quantized import as_floats, float_weights
from forescribe.text.language_model import load

NAMES = "text", "text-draft"
WEIGHTS = "model.safetensors"
QUESTIONS = (
    'Define "song".',
    'Use "quiet" in a sentence.',
    "Write the minutes of the sales meeting on March 3.",
    "Write the minutes of the legal meeting on May 12.",
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(hub.path("text"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Of stock transformers, from the numbers as floats."""
    out = tmp_path_factory.mktemp("floats")
    folders = [as_floats(hub.path(n), out / n) for n in NAMES]
    return tuple(AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders)


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[tuple[int, ...]]:
    def ids(question: str) -> tuple[int, ...]:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return [ids(question) for question in QUESTIONS]


def decode(models, tokenizer, prompts, gamma: int, batch: int, temperature: float = 0.0):
    target, draft = models
    engine = Engine(
        CausalDecoder(target),
        ModelDrafter(CausalDecoder(draft)) if gamma else None,
        batch=batch,
        eos=[tokenizer.eos_token_id],
        schedule=Fixed(gamma),
    )
    work = [
        Request(p, max_new_tokens=80, temperature=temperature, seed=i, tag=i)
        for i, p in enumerate(prompts)
    ]
    results = {r.request.tag: r.tokens for r in engine.run(work)}
    return [results[i] for i in range(len(work))], engine.stats


def test_it_is_small_and_the_draft_uses_the_targets_tokens(models, tokenizer):
    size = sum(f.stat().st_size for n in NAMES for f in hub.path(n).iterdir())
    assert size < 5e6
    other = AutoTokenizer.from_pretrained(hub.path("text-draft"))
    assert other.get_vocab() == tokenizer.get_vocab()
    assert all(m.config.vocab_size == len(tokenizer) for m in models)
    assert all(m.dtype == torch.float32 for m in models)


@pytest.mark.parametrize("name", NAMES)
def test_the_loader_reads_the_floats_that_the_integers_stand_for(name):
    folder = hub.path(name)
    assert torch.int8 in {tensor.dtype for tensor in load_file(folder / WEIGHTS).values()}
    model = load(folder, choose("cpu"), network=False).model
    numbers, expected = model.state_dict(), float_weights(folder)
    assert expected.keys() == numbers.keys() - {"lm_head.weight"}
    assert all(torch.equal(numbers[n], tensor.float()) for n, tensor in expected.items())
    assert torch.equal(numbers["lm_head.weight"], numbers["model.embed_tokens.weight"])
    assert model.generation_config.max_length == 512  # of its generation_config.json


def test_text_survives_the_tokenizer_and_the_signs_are_one_token_each(tokenizer):
    text = 'Café "naïve"\n- 3 %  —  日本 <|nothing|>'
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    chat = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye."},
    ]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    signs = [t for t in tokenizer.convert_ids_to_tokens(ids) if t.startswith("<|")]
    user, assistant, end = "<|user|>", "<|assistant|>", "<|end|>"
    said = [user, end, assistant, end, user, end, assistant]
    assert signs == ["<|begin|>", *said]
    with pytest.raises(Exception, match="roles are user and assistant, not system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}])


@pytest.fixture(scope="module")
def plain(models, tokenizer, prompts) -> list[tuple[int, ...]]:
    return decode(models, tokenizer, prompts, 0, 1)[0]


@pytest.mark.parametrize("batch", [1, 3])
def test_with_its_draft_it_writes_what_it_writes_alone(models, tokenizer, prompts, plain, batch):
    made, stats = decode(models, tokenizer, prompts, 4, batch)
    assert made == plain
    assert stats.acceptance_rate > 0.4


def test_it_answers_to_the_point_and_stops(tokenizer, plain):
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in plain]
    assert texts[0].endswith(".") and "\n" not in texts[0]
    assert texts[2].startswith("Minutes of the sales team, March 3\nPresent: ")
    assert texts[3].startswith("Minutes of the legal team, May 12\nPresent: ")
    assert texts[2].splitlines()[2].startswith("1. The ")


def test_the_card_tells_what_was_measured():
    folder = hub.path("text")
    record = json.loads((folder / "evaluation.json").read_text())
    card = (folder / "README.md").read_text("utf-8")
    assert record["equal"] is True
    for rows in record["acceptance"].values():
        for row in rows:
            if row["gamma"] == 4:
                assert f"{row['acceptance_rate']:.3f}" in card
