"""Text on the core: prompts to text, against transformers' own generation of the same folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count as counter
from itertools import zip_longest
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Sampling
from forescribe.speculative.device import Device
from forescribe.speculative.errors import DecodingError, LoadError, RequestError
from forescribe.speculative.models.causal import cache_numbers
from forescribe.text import TextGenerator
from forescribe.text.language_model import load
from forescribe.text.streaming import HELD, Detokenizer, Options, Stops
from forescribe.text.vocabulary import Vocabulary
from tests.text.language_models import MERGES, POSITIONS, tokenizer, write

PROMPTS = ["the other", "a", "on and on and on and on again, on and on", "Zürich, 8 o'clock: tea"]
FAMILIES = ["llama", "qwen2", "gemma", "mistral", "gpt2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Path, Path]:
    target = write(folder / "target")
    return target, write(folder / "draft", seed=1, near=target)


@pytest.fixture(scope="module")
def generator(pair) -> TextGenerator:
    """For one test at a time."""
    return TextGenerator.load(*pair, batch=3, gamma=4, device="cpu")


REPEATS = Sampling(presence=-0.5, frequency=-0.3)  # which drafts from the text itself get right


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_prompts_in_one_batch_equal_generate(family, folder):
    target = write(folder / f"{family}-target", family=family, seed=2)
    draft = write(folder / f"{family}-draft", family=family, seed=3, near=target)
    made = TextGenerator.load(target, draft, batch=3, gamma=4, device="cpu")
    model, tokens = made.target.model, made.vocabulary.tokenizer
    options = Options(max_tokens=40)
    for done, prompt in zip(made.generate(PROMPTS, options), PROMPTS, strict=True):
        row = tokens(prompt, return_tensors="pt")["input_ids"]
        whole = model.generate(
            row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=40
        )
        assert done.ids == tuple(whole[0, row.shape[1] :].tolist())
        assert done.prompt_tokens == row.shape[1]
        assert done.finish == ("stop" if done.ids[-1] == tokens.eos_token_id else "length")
    assert made.stats.drafted > 50
    for draft in ("ngram",):  # and its length by speed
        copied = TextGenerator.load(target, draft, batch=2, device="cpu")
        assert [d.ids for d in copied.generate(PROMPTS, options)] == [
            d.ids for d in made.generate(PROMPTS, options)
        ]
    asked = Options(max_tokens=40, logprobs=1, sampling=REPEATS)
    (whole,) = made.generate(PROMPTS[:1], asked)
    asked = replace(asked, stop=(whole.text[-4:-2],))
    (whole,) = made.generate(PROMPTS[:1], asked)
    events = list(copied.stream(PROMPTS[0], asked))
    assert (done := events[-1].completion) is not None and done.finish == "stop"
    assert (done.text, done.ids) == (whole.text, whole.ids)
    assert "".join(event.text for event in events) == done.text
    logprobs = [token.logprob for token in whole.tokens]
    assert [token.logprob for token in done.tokens] == pytest.approx(logprobs, abs=1e-5)
    assert copied.stats.accepted > 0


def test_a_stream_is_its_completion_in_pieces(generator):
    options = Options(max_tokens=30, temperature=1.0, seed=7, logprobs=2)
    events = list(generator.stream("the other day", options))
    done = events[-1].completion
    assert done is not None and all(event.completion is None for event in events[:-1])
    assert len(events) > 3
    assert "".join(event.text for event in events) == done.text
    assert tuple(token for event in events for token in event.tokens) == done.tokens
    (whole,) = generator.generate(["the other day"], options)
    assert (whole.text, whole.ids) == (done.text, done.ids)
    assert [token.id for token in done.tokens] == [
        i for i in done.ids if i not in generator.target.ends
    ]
    for token in done.tokens:
        assert token.logprob <= 0 and len(token.best) == 2
        assert token.data.decode(errors="replace") == token.text or token.text.startswith("<|")


def test_callers_that_share_a_generator_get_their_own_events(generator, monkeypatch):
    """Whichever caller runs the rounds, the events of a text reach the caller that waits for it."""
    real, steps = generator.engine.step, counter()

    def step():
        assert next(steps) < 500, "a caller waits for events that were delivered elsewhere"
        return real()

    monkeypatch.setattr(generator.engine, "step", step)
    options, prompts = Options(max_tokens=12), ["tea on", "the other day", "a"]
    alone = [generator.generate([prompt], options)[0].text for prompt in prompts]

    one, two = generator.stream(prompts[0], options), generator.stream(prompts[1], options)
    said = ["", ""]
    for events in zip_longest(one, two):
        for i, event in enumerate(events):
            said[i] += "" if event is None else event.text
    assert said == alone[:2]

    stream = generator.stream(prompts[0], options)
    text = next(stream).text
    number = generator.submit(prompts[2], replace(options, stop=(alone[2][-2:],)))
    whole = generator.generate([prompts[1]], Options(max_tokens=40))[0].text
    assert whole.startswith(alone[1])
    assert text + "".join(event.text for event in stream) == alone[0]
    assert not generator.idle
    events = generator.step()
    while not generator.idle:
        events += generator.step()
    assert {event.number for event in events} == {number}
    done = events[-1].completion
    assert done is not None and done.finish == "stop"
    assert "".join(event.text for event in events) == done.text

    number = generator.submit(prompts[0], options)
    generator.generate([prompts[1]], Options(max_tokens=40))
    generator.cancel(number)
    assert generator.idle and generator.step() == [] and generator.engine.idle


def test_a_seed_is_one_text_whatever_drafts_it(pair):
    target, draft = pair
    options, texts, kept = Options(max_tokens=30, temperature=1.0, seed=1), set(), []
    for drafts, gamma in ((None, 0), (target, 4), (draft, 2), (draft, None)):
        made = TextGenerator.load(target, drafts, gamma=gamma, batch=2, device="cpu")
        texts.add(tuple(done.text for done in made.generate(PROMPTS, options)))
        kept.append((made.stats.accepted, made.stats.drafted))
    assert len(texts) == 1
    # A draft that is its target: only rounding rejects.
    assert kept[1][0] >= kept[1][1] - 2 > 40


def test_requests_come_at_any_time_and_share_nothing_but_the_rows(generator):
    options = [Options(max_tokens=8 + 5 * i, temperature=i % 2, seed=i) for i in range(6)]
    alone = [generator.generate(["tea on"], o)[0].ids for o in options]
    numbers, ended = {}, {}
    for i, each in enumerate(options):
        numbers[generator.submit("tea on", each)] = i
        for event in generator.step():
            ended[event.number] = event.completion
    while not generator.idle:
        for event in generator.step():
            ended[event.number] = event.completion
    assert [ended[number].ids for number in numbers] == alone


def test_a_cancelled_text_is_never_heard_of_again(generator):
    first, second = (generator.submit("he", Options(max_tokens=60, seed=i)) for i in range(2))
    generator.step()
    generator.cancel(first)
    generator.cancel(first)  # twice does nothing
    heard = [event.number for _ in range(80) if not generator.idle for event in generator.step()]
    assert generator.idle and set(heard) == {second}


def test_a_text_stops_in_front_of_a_stop_string_wherever_tokens_end(generator):
    options = Options(max_tokens=40, temperature=1.0, seed=3)
    (free,) = generator.generate(["other"], options)
    text = free.text
    assert len(text) > 12
    stop = text[7:10]  # across borders of tokens, most of which are single bytes
    at = text.find(stop)
    cut = Options(max_tokens=40, temperature=1.0, seed=3, stop=("never in it", stop))
    events = list(generator.stream("other", cut))
    done = events[-1].completion
    assert done is not None and (done.text, done.finish, done.stop) == (text[:at], "stop", stop)
    assert "".join(event.text for event in events) == text[:at]
    assert done.ids == free.ids[: len(done.ids)] and len(done.ids) < len(free.ids)
    assert b"".join(t.data for t in done.tokens).decode(errors="replace").startswith(text[: at - 1])


@given(st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
       st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))  # fmt: skip
def test_stops_cut_at_the_stop_that_is_complete_first(pieces, stops):
    """However the text is cut into pieces: as letter by letter."""
    text = "".join(pieces)
    ends = [
        (end, start)
        for end in range(len(text) + 1)
        for start in range(end)
        if text[start:end] in stops
    ]
    expected = text[: min(ends)[1]] if ends else text
    made, said, found = Stops(stops), "", None
    for piece in pieces:
        more, found = made.push(piece)
        said += more
        assert expected.startswith(said)  # nothing is ever taken back
        if found is not None:
            break
    assert (found is not None) == bool(ends)
    assert said + made.flush() == expected


@settings(max_examples=50)
@given(st.text(max_size=30), st.text(alphabet="her a tö", max_size=12))
def test_text_is_told_in_whole_characters(text, prompt):
    vocabulary = Vocabulary(tokenizer())
    made, said = Detokenizer(vocabulary, vocabulary.bare(prompt)), ""
    for token in vocabulary.bare(text):
        said += made.push(token)
        assert text.startswith(said)
    assert said + made.flush() == text
    assert b"".join(map(vocabulary.data, vocabulary.bare(text))) == text.encode()


def test_what_is_no_text_is_let_go_at_last():
    vocabulary = Vocabulary(tokenizer())
    half = vocabulary.bare("ö")[0]
    made = Detokenizer(vocabulary, ())
    said = [made.push(half) for _ in range(2 * HELD)]
    assert said.count("") == 2 * HELD - 2
    assert set("".join(said)) == {"\ufffd"}


def test_conversations_take_the_models_own_form(generator, folder):
    messages = [{"role": "user", "content": "tea?"}]
    ids = generator.encode(messages)
    specials = generator.vocabulary.ids
    assert ids[0] == specials["<|user|>"] and ids[-1] == specials["<|assistant|>"]
    assert generator.vocabulary.decode(ids) == "tea?"
    with pytest.raises(RequestError, match="chat template refuses this: no tool"):
        generator.encode([{"role": "tool", "content": "7"}])
    plain = write(folder / "no-template", tokens=tokenizer(chat=False))
    with pytest.raises(RequestError, match="the model has no chat template"):
        TextGenerator.load(plain, device="cpu").encode(messages)


def test_a_draft_with_other_tokens_is_refused_by_name(pair, folder):
    other = write(folder / "other", tokens=tokenizer(MERGES[::-1]))
    with pytest.raises(
        LoadError, match=r"other cannot draft for .*target: they have ids.*; take a"
    ):
        TextGenerator.load(pair[0], other, device="cpu")


def test_a_family_may_pad_one_vocabulary_to_different_sizes(pair, folder):
    """As Qwen does: the draft has more room for tokens than its target, or less."""
    target, _ = pair
    expected = TextGenerator.load(target, device="cpu").generate(PROMPTS, Options(max_tokens=24))
    wide = write(folder / "wide", padding=13)
    made = TextGenerator.load(target, wide, gamma=3, device="cpu")
    assert [d.ids for d in made.generate(PROMPTS, Options(max_tokens=24))] == [
        d.ids for d in expected
    ]
    more = tokenizer()
    more.add_tokens(["<|tool|>"], special_tokens=True)
    tooled = TextGenerator.load(target, write(folder / "tooled", tokens=more), device="cpu")
    assert tooled.draft.vocab_size == tooled.target.vocab_size + 1
    padded = TextGenerator.load(wide, target, gamma=3, device="cpu")
    plain = padded.plain().generate(PROMPTS, Options(max_tokens=24))
    assert [d.ids for d in padded.generate(PROMPTS, Options(max_tokens=24))] == [
        d.ids for d in plain
    ]


def test_what_cannot_be_served_is_refused_before_it_is_queued(generator):
    for prompt, options, said in (
        ([5] * POSITIONS, None, "the prompt has 96 tokens; with its answer it must fit 96"),
        ([9999], None, "token 9999 is none of"),
        ("a", Options(logprobs=21), "logprobs is 21; at most 20"),
        ("a", Options(gamma=5), "gamma is 5; this engine drafts 4 at most"),
        ("a", Options(seed=0.5), "seed is 0.5"),
    ):
        with pytest.raises(RequestError, match=said):
            generator.submit(prompt, options)
    assert generator.idle
    assert generator.encode("") == (generator.vocabulary.ids["<|begin|>"],)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("a\ud800b", "the prompt holds '\\\\ud800', half of a surrogate pair"),
        ([{"role": "user", "content": "\udfff"}], "content of message 0 holds '\\\\udfff'"),
        ([{"role": "\ud800", "content": "a"}], "role of message 0 holds"),
        ([5, 1.5], "the prompt holds 1.5; a token id is a whole number from 0"),
        ([True], "the prompt holds True"),
        ([-1], "token -1 is none of|the prompt holds -1"),
        ([5, {"role": "user", "content": "a"}], "mixes messages with something else"),
        ([{"role": "user", "content": "a"}, "b"], "mixes messages with something else"),
        (None, "the prompt is NoneType, not text, tokens or messages"),
        (b"a", "the prompt is bytes"),
        ([], "the prompt is empty"),
        ([{}], "chat template refuses this"),
    ],
)
def test_prompts_that_are_none_are_refused(generator, prompt, said):
    with pytest.raises(RequestError, match=said):
        generator.submit(prompt)
    assert generator.idle and generator.engine.idle


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"stop": ("\ud800",)}, "a stop string holds"),
        ({"stop": (7,)}, "a stop string is 7; it must be text"),
        ({"stop": ("",)}, "a stop string is empty"),
    ],
)
def test_options_with_impossible_values_are_refused(fields, said):
    with pytest.raises(RequestError, match=said):
        Options(**fields)


def test_the_context_is_the_models(folder, pair, monkeypatch):
    """Of the target, and of a draft with fewer positions, as far as half of the free memory is enough."""
    long = write(folder / "long", positions=8192)
    made = TextGenerator.load(long, batch=2, device="cpu")
    assert made.context == 8192
    assert len(made.encode([1] * 8191)) == 8191
    with pytest.raises(RequestError, match="has 8192 tokens; with its answer it must fit 8192$"):
        made.encode([1] * 8192)

    both = TextGenerator.load(long, pair[1], batch=2, device="cpu")
    assert both.context == POSITIONS
    with pytest.raises(RequestError, match="must fit 96; a larger context allows up to 8192$"):
        both.encode([1] * 96)

    config = made.target.model.config
    assert cache_numbers(config) == 2 * 2 * 1 * 8  # keys and values, layers, heads, numbers each
    kept, mask = 2 * 4 * cache_numbers(config), 2 * 4
    for limit in (5000, 8191, 10_000):
        free = 2 * (kept * limit + mask * limit**2)
        monkeypatch.setattr(Device, "free_memory", lambda self, free=free: free)
        found = TextGenerator(made.target, device=made.device, batch=2).context
        assert found == min(8192, limit // 256 * 256)
    for free in (0, None):  # as before: unknown, or too little for what was always allowed
        monkeypatch.setattr(Device, "free_memory", lambda self, free=free: free)
        assert TextGenerator(made.target, device=made.device, batch=2).context == 4096


@pytest.mark.parametrize("context", [0, 1, POSITIONS + 1, 2.5, True])
def test_a_context_that_the_model_has_not_is_refused(generator, context):
    with pytest.raises(RequestError, match="context is"):
        TextGenerator(generator.target, device=generator.device, context=context)


class Fault(Exception):
    """Of a part of the model."""


def test_a_text_that_fails_fails_alone(generator, monkeypatch):
    options = Options(max_tokens=12)
    expected = [done.ids for done in generator.generate(["the other", "a", "on and"], options)]
    rows, real = generator.engine.rows, generator.engine.target.score

    def score(*args, **more):
        if bool(rows.active[1]) and int(rows.lengths[1] - rows.begin[1]) > 4:
            raise Fault("out of order")
        return real(*args, **more)

    monkeypatch.setattr(generator.engine.target, "score", score)
    done = generator.generate(["the other", "a", "on and"], options)
    assert [d.ids for d in done[::2]] == expected[::2]
    assert done[1].finish == "failed" and "Fault: out of order" in str(done[1].error)
    assert done[1].ids == expected[1][: len(done[1].ids)] and len(done[1].ids) >= 4
    assert [d.error for d in done[::2]] == [None, None]
    assert generator.idle and generator.engine.idle


def test_a_stream_that_fails_raises_behind_what_was_written(generator, monkeypatch):
    (whole,) = generator.generate(["tea on"], Options(max_tokens=20))
    rows, real = generator.engine.rows, generator.engine.target.score

    def score(*args, **more):
        if int((rows.lengths - rows.begin).where(rows.active, 0).max()) > 8:
            raise Fault("late")
        return real(*args, **more)

    monkeypatch.setattr(generator.engine.target, "score", score)
    said = []
    with pytest.raises(DecodingError, match="scoring failed: Fault: late"):
        for event in generator.stream("tea on", Options(max_tokens=20)):
            said.append(event.text)
    assert whole.text.startswith("".join(said)) and "".join(said)
    assert generator.idle and generator.engine.idle


def test_tokens_that_are_no_text_fail_their_text_alone(generator, monkeypatch):
    options = Options(max_tokens=12)
    expected = [done.ids for done in generator.generate(["the other", "a"], options)]
    push, hit = Detokenizer.push, []

    def broken(self, token):
        hit.append(self)
        if len(hit) > 6 and self is hit[0]:
            raise Fault("no such letter")
        return push(self, token)

    monkeypatch.setattr(Detokenizer, "push", broken)
    first, second = generator.generate(["the other", "a"], options)
    assert first.finish == "failed" and "making text of the tokens failed" in str(first.error)
    assert second.ids == expected[1] and second.error is None
    while not generator.engine.idle:
        assert generator.step() == []


def test_folders_that_hold_no_language_model_are_refused(pair, tmp_path):
    device = TextGenerator.load(pair[0], device="cpu").device
    with pytest.raises(LoadError, match="holds no config.json"):
        load(tmp_path, device)
    (tmp_path / "config.json").write_text('{"model_type": "whisper", "is_encoder_decoder": true}')
    with pytest.raises(LoadError, match="holds no weights"):
        load(tmp_path, device)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(LoadError, match="whisper is no causal language model"):
        load(tmp_path, device)
    (tmp_path / "config.json").write_text('{"model_type": "voxtral"}')  # a text model that hears
    with pytest.raises(LoadError, match="voxtral is no causal language model$"):
        load(tmp_path, device)


def spoil(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    if how == "cut weights":
        weights.write_bytes(weights.read_bytes()[:2000])
    elif how == "a shard lost":
        weights.rename(folder / "model-00001-of-00002.safetensors")
        index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002.x"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "a broken config":
        (folder / "config.json").write_text("{")
    elif how == "no type":
        (folder / "config.json").write_text("{}")
    elif how == "no tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut weights", "model.safetensors is damaged or not complete"),
        ("a shard lost", "holds no model-00002.x, which model.safetensors.index.json names"),
        ("a broken config", "config.json is damaged"),
        ("no type", "model_type"),
        ("no tokenizer", "has no usable tokenizer"),
    ],
)
def test_spoilt_folders_are_refused_in_one_line_that_names_the_file(pair, tmp_path, how, said):
    folder = shutil.copytree(pair[0], tmp_path / "copy")
    spoil(folder, how)
    with pytest.raises(LoadError) as caught:
        TextGenerator.load(folder, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"--model {folder}") and said in message
    assert "\n" not in message and len(message) < 500


def test_texts_may_end_with_one_of_several_tokens(pair, tmp_path):
    folder = shutil.copytree(pair[0], tmp_path / "copy")
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = [config["eos_token_id"], 40, 41]
    (folder / "generation_config.json").write_text(json.dumps(config))
    assert TextGenerator.load(folder, device="cpu").target.ends == set(config["eos_token_id"])
