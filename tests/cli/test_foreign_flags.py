"""What people type from memory: translated, or refused by name; never accepted and ignored."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from forescribe.asr.errors import UsageError
from forescribe.cli.foreign_flags import ANY, FOREIGN, KnownOptions, translate
from forescribe.cli.main import app
from forescribe.cli.transcribe_options import NOT_IN_RESULTS

VALUED = (
    "--output-dir -o --output-format -f --initial-prompt --batch-size --dtype --quantize --task --model "
    "--language"
)
SWITCHES = "word-timestamps vad timestamps local-files-only"
KNOWN = KnownOptions(
    valued=frozenset({*VALUED.split(), "--logprob-threshold"}),
    switches={
        **{f"--{name}": f"--no-{name}" for name in SWITCHES.split()},
        **{f"--no-{name}": f"--{name}" for name in SWITCHES.split()},
        "--overwrite": "--resume",
        "--resume": "--overwrite",
        "--help": None,
    },
)


def put(*typed: str) -> list[str]:
    return translate(list(typed), KNOWN)


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


# The three forms of a boolean, the two spellings of everything


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--word_timestamps"], ["--word-timestamps"]),
        (["--word_timestamps", "True"], ["--word-timestamps"]),
        (["--word-timestamps", "true"], ["--word-timestamps"]),
        (["--word_timestamps=True"], ["--word-timestamps"]),
        (["--word_timestamps", "False"], ["--no-word-timestamps"]),
        (["--no_word_timestamps"], ["--no-word-timestamps"]),
        (["--no-word-timestamps=False"], ["--word-timestamps"]),
        (["--word_timestamps", "a.wav"], ["--word-timestamps", "a.wav"]),
        (["--vad_filter", "False", "a.wav"], ["--no-vad", "a.wav"]),
        (["--vad_filter"], ["--vad"]),
        (["--output_dir", "True"], ["--output_dir", "True"]),  # takes a value, so it is one
        (["--fp16", "False"], ["--dtype", "float32"]),
        (["--fp16", "True"], ["--dtype", "float16"]),
        (["--compute_type", "bfloat16"], ["--dtype", "bfloat16"]),
        (["--compute_type", "int8"], ["--quantize", "int8"]),
        (["--prompt", "Ann, Bob"], ["--initial-prompt", "Ann, Bob"]),
        (["--beam_size", "1", "a.wav"], ["a.wav"]),
        (["--beam_size=None"], []),
        (["--patience", "1.0"], []),
        (["--temperature", "0"], []),
        (["--temperature", "0.0"], []),
        (["--suppress_tokens", "-1"], []),
        (["--translate"], ["--task", "translate"]),
        (["--speaker_embeddings", "False"], []),
        (["a.wav", "--", "--beam_size", "5"], ["a.wav", "--", "--beam_size", "5"]),
        (["-o", "--beam_size"], ["-o", "--beam_size"]),  # a value, whatever it looks like
        (["--initial_prompt", "--fp16"], ["--initial_prompt", "--fp16"]),
        (["-"], ["-"]),
        (["--unknown", "x"], ["--unknown", "x"]),  # for the parser to refuse
    ],
)
def test_typed_and_meant(typed, meant) -> None:
    assert put(*typed) == meant


REFUSED = {
    "--beam_size 5": "--beam_size 5 is not supported: the text is the model's own greedy",
    "--beam-size=5": "--beam-size 5 is not supported",
    "--best_of 5": "greedy",
    "--patience 2": "greedy",
    "--temperature 0.7": "--guards",
    "--carry_initial_prompt True": "stands before every window",
    "--carry_initial_prompt False": "stands before every window",
    "--suppress_tokens 1,2": "the model's own list",
    "--compute_type int8_float16": "--quantize int8",
    "--hotwords Ann": "--initial-prompt",
    "--vad_onset 0.3": "--vad or --no-vad",
    "--diarize_model x": "--diarizer NAME",
    "--speaker_embeddings": "voices stay on this machine",
    "--model_dir x": "HF_HUB_CACHE",
    "--device_index 1": "--device cuda:N",
    "--chunk_size 15": "leave it out",
    "--fp16=maybe": "True or False",
    "--word_timestamps=maybe": "--word_timestamps is True or False, not 'maybe'",
    "-osrt": "-f srt",
    "-of name": "-o DIR",
    "-et 2.4": "--compression-ratio-threshold X",
    "-nf": "--temperature-increment-on-fallback None",
    "-f x.wav": "a recording needs no flag, as in `forescribe x.wav -f srt`",
    "-f calls/X.MP3": "-f names formats of results here",
    "--output_format=x.wav": "a recording needs no flag",
    "--file x.wav": "write the file alone",
    "--beam_size": "--beam_size needs a value",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_has_no_meaning_here_is_refused_with_a_way_out(typed) -> None:
    with pytest.raises(UsageError) as caught:
        put(*typed.split())
    assert REFUSED[typed] in str(caught.value)
    assert typed.split("=")[0].split()[0] in str(caught.value)


def test_what_only_another_command_has_keeps_the_name_that_was_typed() -> None:
    few = KnownOptions(frozenset({"--dtype"}), {})
    assert translate(["--fp16", "True", "--prompt", "Ann"], few) == [
        "--dtype",
        "float16",
        "--prompt",
    ]


def test_a_secret_is_in_no_message() -> None:
    for typed in (["--hf_token", "hf_s3cret"], ["--hf_token=hf_s3cret"]):
        with pytest.raises(UsageError, match="HF_TOKEN") as caught:
            put(*typed)
        assert "s3cret" not in str(caught.value)


@given(
    st.lists(st.sampled_from(["a.wav", "-o", "x", "--vad", "--vad_filter", "True", "--", "False"]))
)
def test_no_word_is_lost(typed) -> None:
    """Only truth values may go, into the switch before them."""
    kept = [word for word in put(*typed) if word in ("a.wav", "x")]
    assert kept == [word for word in typed if word in ("a.wav", "x")]


# The table and the command


def test_every_foreign_flag_has_a_reason_and_a_way_out() -> None:
    for name, foreign in FOREIGN.items():
        assert name.startswith("--") and "_" not in name
        assert ANY in foreign.means or (foreign.why and foreign.instead), name


def options() -> set[str]:
    command, _ = real()
    return {n for p in command.params for n in (*p.opts, *p.secondary_opts) if n.startswith("-")}


def test_what_is_ours_is_in_no_table() -> None:
    assert not options() & FOREIGN.keys()


def test_every_translation_exists() -> None:
    """A flag that is translated into what is not there would be refused under a name that nobody
    typed."""
    meant = {part for f in FOREIGN.values() for parts in f.means.values() for part in parts}
    assert {part for part in meant if part.startswith("--")} <= options()


def test_every_way_out_exists() -> None:
    for name, foreign in FOREIGN.items():
        said = foreign.instead.replace(",", " ").replace("`", " ").split()
        for word in said:
            if word.startswith("-") and word != "-m":  # python -m
                assert word in options(), name


@pytest.mark.parametrize(
    ("known", "ours"),
    [
        ("--output_dir out", {"output_dir": "out"}),
        ("--word_timestamps True", {"word_timestamps": True}),
        ("--word_timestamps False", {"word_timestamps": False}),
        ("--verbose True", {"verbose": True}),
        ("--verbose False", {"verbose": False}),
        ("--vad_filter False", {"vad": False}),
        ("--compute_type float16", {"dtype": "float16"}),
        ("--fp16 False", {"dtype": "float32"}),
        ("--logprob_threshold -0.5", {"logprob_threshold": "-0.5"}),
        ("--compression_ratio_threshold None", {"compression_ratio_threshold": "None"}),
        (
            "--temperature_increment_on_fallback 0.5",
            {"temperature_increment_on_fallback": "0.5"},
        ),
        ("--max_words_per_line 5", {"max_words_per_line": 5}),
        ("--highlight_words True", {"highlight_words": True}),
        ("--local_files_only True", {"local_files_only": True}),
        ("--model_cache_only True", {"local_files_only": True}),
        ("--condition_on_previous_text False", {"condition_on_previous_text": False}),
        ("--beam_size 1 --best_of 1 --temperature 0", {}),
    ],
)
def test_both_spellings_reach_the_command(known, ours) -> None:
    changed = {
        name: value for name, value in parsed(*known.split()).items() if value != parsed()[name]
    }
    assert changed == {n: v for n, v in ours.items() if v != parsed()[n]}
    hyphens = [w.replace("_", "-") if w.startswith("--") else w for w in known.split()]
    assert parsed(*hyphens) == parsed(*known.split())


def test_every_option_has_both_spellings() -> None:
    command, _ = real()
    for option in command.params:
        for name in (*option.opts, *option.secondary_opts):
            if not name.startswith("--") or name == "--help":
                continue
            typed = name[:2] + name[2:].replace("-", "_")
            value = [] if getattr(option, "is_flag", False) else ["1"]
            assert parsed(typed, *value) == parsed(name, *value), name


def test_every_switch_takes_true_and_false() -> None:
    command, _ = real()
    for option in command.params:
        if getattr(option, "is_flag", False) and option.name != "help":
            name = option.opts[0]
            assert parsed(name)[option.name] is True
            assert parsed(name, "True") == parsed(name)
            assert parsed(f"{name}=False")[option.name] is False, name


def test_all_that_can_change_a_word_is_in_the_fingerprint() -> None:
    """The kind of a new option is declared here; without a declaration it counts."""
    command, _ = real()
    assert {p.name for p in command.params} >= NOT_IN_RESULTS
    assert {p.name for p in command.params} - NOT_IN_RESULTS - {"help"} == {
        "language",
        "task",
        "initial_prompt",
        "timestamps",
        "word_timestamps",
        "max_line_width",
        "max_line_count",
        "max_words_per_line",
        "highlight_words",
        "guards",
        "compression_ratio_threshold",
        "logprob_threshold",
        "no_speech_threshold",
        "temperature_increment_on_fallback",
        "vad",
        "long_form",
        "condition_on_previous_text",
        "dtype",
        "quantize",
    }


def test_the_flags_of_the_conventions_are_all_known() -> None:
    """Every flag that openai/whisper, whisperX and faster-whisper's command share is ours, or is
    answered by name."""
    theirs = Path(__file__).with_name("flags_of_others.txt").read_text(encoding="utf-8").split()
    assert len(theirs) > 60
    known = {name.replace("_", "-") for name in theirs}
    assert not known - options() - FOREIGN.keys()


# The page


def rows() -> list[list[str]]:
    """Rows of docs/reference/flags.md, one for each flag: flag, accepted values, reason for refusing others,
    alternative."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "flags.md").read_text(
        encoding="utf-8"
    )
    found = []
    for line in page.split("## ")[0].splitlines():
        if match := re.fullmatch(r"- ((?:`--\w+`(?:, )?)+): (.+)", line):
            accepted, slash, refused = match[2].rpartition(" / ")
            if not slash and refused.startswith(("`", "any value")):
                accepted, refused = refused, ""
            why, _, instead = refused.rpartition("; ")
            found += [[flag, accepted, why, instead] for flag in match[1].split(", ")]
    return found


def accepted_values(cell: str) -> dict[str, str]:
    """The values of a cell, and our options for each."""
    entries = [entry.partition(": ") for entry in filter(None, cell.split("; "))]
    return {
        value.strip("`"): ours.strip("`")
        for values, _, ours in entries
        for value in values.split(", ")
    }


def test_the_page_says_what_is_accepted() -> None:
    for flag, accepted, *_ in rows():
        for value, ours in accepted_values(accepted).items():
            typed = "X" if value == "any value" else value
            expected = ours.replace("VALUE", "X").split()
            assert translate([flag.strip("`"), typed], KNOWN) == expected, (flag, value)


def test_the_page_says_what_is_refused_and_why() -> None:
    for flag, accepted, why, instead in rows():
        if not (why or instead):  # nothing is refused, but what is neither True nor False
            assert accepted_values(accepted).keys() in ({"any value"}, {"True", "False"}), flag
            continue
        value = f"{flag.strip('`')}=no such value"
        with pytest.raises(UsageError) as caught:
            translate([value], KNOWN)
        assert str(caught.value).endswith(f"is not supported: {why}; {instead}"), flag


def test_the_page_has_every_flag() -> None:
    assert {row[0].strip("`").replace("_", "-") for row in rows()} == FOREIGN.keys()
