"""What people type from memory: understood, or refused by name with what to use; never ignored."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.cli.option_records import FOREIGN, checked
from forescribe.cli.transcribe_options import NOT_IN_RESULTS

SWITCHES = {"--vad": "--no-vad", "--no-vad": "--vad", "--help": None}


def put(*typed: str) -> list[str]:
    return checked(list(typed), {"--output-dir", "-o", "--initial-prompt"}, SWITCHES)


@cache
def real() -> tuple[object, object]:
    """The command itself, and a context for it."""
    group = get_command(app)
    command = group.commands["transcribe"]
    parent = group.make_context("forescribe", [], resilient_parsing=True)
    return command, parent


def parsed(*typed: str) -> dict[str, object]:
    """What the command would be called with."""
    command, parent = real()
    return command.make_context("transcribe", ["a.wav", *typed], parent=parent).params


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--vad", "True", "a.wav"], ["--vad", "a.wav"]),
        (["--vad=false"], ["--no-vad"]),
        (["--no_vad=False"], ["--vad"]),
        (["--vad", "a.wav"], ["--vad", "a.wav"]),
        (["--output_dir", "True"], ["--output_dir", "True"]),  # takes a value, so it is one
        (["a.wav", "--", "--beam_size", "5"], ["a.wav", "--", "--beam_size", "5"]),
        (["-o", "--beam_size"], ["-o", "--beam_size"]),  # a value, whatever it looks like
        (["--initial_prompt=x", "a.wav"], ["--initial_prompt=x", "a.wav"]),
        (["-"], ["-"]),
        (["--unknown", "x"], ["--unknown", "x"]),  # for the parser to refuse
    ],
)
def test_typed_and_meant(typed, meant) -> None:
    assert put(*typed) == meant


@given(st.lists(st.sampled_from(["a.wav", "-o", "x", "--vad", "True", "--", "False"])))
def test_no_word_is_lost(typed) -> None:
    """Only truth values may go, into the switch before them."""
    kept = [word for word in put(*typed) if word in ("a.wav", "x")]
    assert kept == [word for word in typed if word in ("a.wav", "x")]


@pytest.mark.parametrize(
    ("typed", "said"),
    {
        "--best_of 5": "--best_of is not supported: leave it out: the text is the most probable one",
        "--best-of=5": "--best-of is not supported",
        "--fp16 False": "--dtype float32",
        "-osrt": "use -f srt",
        "--hf_token=s3cret": "set HF_TOKEN",
        "--vad=maybe": "--vad is True or False, not 'maybe'",
        "--help=False": "--help is a flag",
    }.items(),
)
def test_what_has_no_meaning_here_is_refused_with_a_way_out(typed, said) -> None:
    with pytest.raises(UsageError) as caught:
        put(*typed.split())
    assert said in str(caught.value) and "s3cret" not in str(caught.value)


def test_what_is_refused_is_no_option_and_what_is_named_instead_is_one() -> None:
    group = get_command(app)
    every = {
        name
        for command in group.commands.values()
        for part in (command, *getattr(command, "commands", {}).values())
        for option in part.params
        for name in (*option.opts, *option.secondary_opts)
    }
    transcribe = {n for option in real()[0].params for n in (*option.opts, *option.secondary_opts)}
    assert not transcribe & FOREIGN.keys()
    for name, instead in FOREIGN.items():
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", instead)) <= every, name


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ("--word_timestamps True", {"word_timestamps": True}),
        ("--verbose False", {}),
        ("--vad_filter False", {"vad": False}),
        ("--prompt Ann", {"initial_prompt": "Ann"}),
        ("--lang de", {"language": ["de"]}),
        ("--whisper_model base", {"model": "base"}),
        ("--log_prob_threshold -0.5", {"logprob_threshold": "-0.5"}),
        ("--logprob-thold -0.5", {"logprob_threshold": "-0.5"}),
        ("--temperature-inc None", {"temperature_increment_on_fallback": "None"}),
        ("--no-speech-thold 0.7", {"no_speech_threshold": "0.7"}),
        ("--speaker_num 3", {"num_speakers": 3}),
        ("--compression_ratio_threshold None", {"compression_ratio_threshold": "None"}),
    ],
)
def test_both_spellings_and_other_names_reach_the_command(typed, changed) -> None:
    before, after = parsed(), parsed(*typed.split())
    assert {name: v for name, v in after.items() if v != before[name]} == changed
    assert parsed(*(w.replace("_", "-") for w in typed.split())) == after


def test_every_switch_takes_true_and_false() -> None:
    for option in real()[0].params:
        if getattr(option, "is_flag", False) and option.name != "help":
            name = option.opts[0]
            assert parsed(name)[option.name] is True
            assert parsed(name, "True") == parsed(name)
            assert parsed(f"{name}=False")[option.name] is False, name


def test_all_that_can_change_a_word_is_in_the_fingerprint() -> None:
    """The kind of a new option is declared here; without a declaration it counts."""
    names = {p.name for p in real()[0].params}
    assert names >= NOT_IN_RESULTS
    assert sorted(names - NOT_IN_RESULTS - {"help"}) == [
        "beam_size",
        "compression_ratio_threshold",
        "dtype",
        "guards",
        "highlight_words",
        "initial_prompt",
        "language",
        "length_penalty",
        "logprob_threshold",
        "max_line_count",
        "max_line_width",
        "max_words_per_line",
        "no_speech_threshold",
        "patience",
        "quantize",
        "redact",
        "replace",
        "task",
        "temperature_increment_on_fallback",
        "terms",
        "timestamps",
        "vad",
        "word_timestamps",
    ]
