"""The corpus of the text pair: documents, held-out documents, and packing."""

from __future__ import annotations

import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forescribe.distill.training import rate
from training.text import corpus, minutes, packing
from training.text import model as pair
from training.text.corpus import Document

NEEDS_WORDNET = pytest.mark.skipif(
    not (corpus.WORDNET / "index.noun").exists() or not corpus.WORDS.exists(),
    reason="needs Debian's wordnet-base and wamerican-small",
)


def test_minutes_name_only_people_who_are_present_and_give_every_subject_an_action():
    rng = random.Random(0)
    for _ in range(200):
        question, team, date = minutes.request(rng)
        assert team in question and date in question
        lines = minutes.minutes(rng, team, date).splitlines()
        assert lines[0] == f"Minutes of the {team} team, {date}"
        present = lines[1].removeprefix("Present: ").split(", ")
        assert len(set(present)) == len(present) >= 2
        subjects = [line.split(". The ")[1] for line in lines if re.match(r"\d\. The ", line)]
        actions = [line for line in lines if line.startswith("- ")]
        assert len(actions) == len(subjects) >= 2
        for subject, action in zip(subjects, actions, strict=True):
            assert f"the {subject} " in action
            assert action.split()[1] in present
        assert not re.search(r"\b[Aa] [aeiou]", "\n".join(lines))


def test_a_word_is_held_out_with_its_definition_and_its_example():
    asked = [f"word{'abcdefghij'[n % 10]}{'abcdefghij'[n // 10]}" for n in range(100)]
    sides = set()
    for word in asked:
        made = [
            Document("definition", "A thing.", f'Define "{word}".'),
            Document("definition", "A thing.", f'What does "{word}" mean?'),
            Document("example", "It was used.", f'Use "{word}" in a sentence.'),
        ]
        assert len({document.held_out for document in made}) == 1
        sides.add(made[0].held_out)
    assert sides == {True, False}


@NEEDS_WORDNET
def test_definitions_are_sentences_and_examples_hold_their_word():
    found = corpus.documents()
    kinds = {k: [d for d in found if d.kind == k] for k in ("definition", "example", "glossary")}
    assert len(kinds["definition"]) == corpus.DEFINED
    assert len(kinds["glossary"]) > corpus.GLOSSARY
    assert not any(d.held_out for d in kinds["glossary"])
    for document in kinds["definition"] + kinds["glossary"]:
        assert re.fullmatch(r"[A-Z][A-Za-z ,'\-]+\.", document.answer), document
    for document in kinds["example"]:
        assert document.topic in document.answer.lower().rstrip(".").split(), document
    share = sum(d.held_out for d in found) / len(found)
    assert 0.01 < share < 0.05


sizes = st.lists(st.integers(1, packing.LENGTH + 40), min_size=1, max_size=40)


@given(sizes)
def test_rows_hold_every_document_once_and_never_overflow(lengths):
    texts = [[n] * length for n, length in enumerate(lengths)]
    dealt = packing.rows(texts)
    assert all(sum(map(len, row)) <= packing.LENGTH for row in dealt)
    found = sorted((document[0], len(document)) for row in dealt for document in row)
    assert found == [(n, min(length, packing.LENGTH)) for n, length in enumerate(lengths)]


def test_a_document_in_a_row_is_scored_as_if_it_were_alone():
    """The mask and the positions keep neighbours apart, and labels are the next token of the same text."""
    torch.manual_seed(0)
    model = pair.draft().eval()
    rng = random.Random(2)
    texts = [[rng.randrange(10, 2000) for _ in range(n)] for n in (5, 40, 17)]
    pack = packing.pack([texts[:2], texts[2:]])
    assert pack.labels.tolist() == [t for text in texts for t in text[1:]]
    with torch.inference_mode():
        together = pair.logits(model, pack)
        start = 0
        for text in texts:
            alone = pair.logits(model, packing.pack([[text]]))
            torch.testing.assert_close(
                together[start : start + len(alone)], alone, atol=0.02, rtol=0.02
            )
            start += len(alone)


def test_growing_the_target_changes_nothing_and_every_new_layer_can_learn():
    torch.manual_seed(0)
    small = pair.target(pair.FEW).eval()
    large = pair.grown(small, pair.LAYERS).eval()
    assert len(large.model.layers) == pair.LAYERS
    tokens = torch.randint(0, 2048, (2, 9))
    with torch.inference_mode():
        torch.testing.assert_close(large(tokens).logits, small(tokens).logits)
    large(tokens, labels=tokens).loss.backward()
    for layer in large.model.layers:
        assert layer.mlp.down_proj.weight.grad.abs().max() > 0


def test_distillation_asks_for_the_distribution_and_for_the_choice():
    torch.manual_seed(0)
    wanted = torch.randn(30, 50) * 3
    equal = pair.distillation(wanted, wanted)
    choice = -0.5 * wanted.log_softmax(-1).amax(-1).mean()
    torch.testing.assert_close(equal, choice)  # of the distribution nothing is left to learn
    surer = wanted + 0.1 * torch.nn.functional.one_hot(wanted.argmax(-1), 50)
    assert pair.distillation(wanted, surer) < equal  # the choice is asked for beyond it
    assert pair.distillation(wanted, torch.randn_like(wanted) * 3) > equal


@given(st.floats(0, 1), st.integers(0, 10_000))
def test_the_rate_stays_within_its_bounds_and_ends_at_zero(progress, step):
    assert 0 <= rate(progress, step, fall_from=0.5) <= 1
    assert rate(1.0, step, fall_from=0.5) == 0
    assert rate(0.3, 20 + step, fall_from=0.5) == 1
