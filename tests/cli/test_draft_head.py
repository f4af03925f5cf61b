"""`forescribe draft-head`: lists from transcripts and texts, and drafts that use them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner

from forescribe import Transcriber
from forescribe.asr.decode.options import Options
from forescribe.asr.errors import ForescribeError, ModelError, OutputError, UsageError
from forescribe.cli.main import app
from forescribe.distill.draft_lists import DraftVocabulary, Piece, files_of, read
from forescribe.speculative.drafters.draft_tokens import FILE, DraftTokens
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models import hub
from forescribe.text import Options as TextOptions
from forescribe.text import TextGenerator
from tests.docs.pages import ROOT

pytestmark = pytest.mark.usefixtures("encoded_once")

SAMPLES = ROOT / "samples"
WORDS = "The press prints about 400 brochures per hour.\n\nTwo of the rollers are worn.\n"


def draft_head(*arguments: str | Path, stdin: bytes | None = None) -> Any:
    result = CliRunner().invoke(app, ["draft-head", *map(str, arguments)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A copy of the bundled speech draft, without its own list."""
    ignored = shutil.ignore_patterns(FILE)
    return Path(shutil.copytree(hub.path("tiny.en-draft"), tmp_path / "draft", ignore=ignored))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text(WORDS)
    return path


def listed(folder: Path) -> DraftTokens:
    found = DraftTokens.beside(folder, 51864)
    assert found is not None
    return found


def test_a_list_lies_beside_the_draft_with_its_source_and_all_special_tokens(
    draft: Path, texts: Path
) -> None:
    made = draft_head(draft, texts)
    found = listed(draft)
    assert made.exit_code == 0
    assert re.search(
        r"draft_tokens.json: [\d,]+ of 51,864 tokens, 1,608 of them special", made.stdout
    )
    assert "are little text" in made.stderr
    assert found.source == "words.txt" and found.coverage == 1
    assert set(range(51864 - 1608, 51864)) <= set(found.ids)
    tokenizer = DraftVocabulary(draft).tokenizer
    words = {i for line in WORDS.splitlines() if line for i in tokenizer.encode(" " + line)}
    assert set(found.ids) == words | set(range(51864 - 1608, 51864))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", WORDS),
        ("a.srt", "1\n00:00:00,000 --> 00:00:03,320\nThe press prints about 400 brochures per hour.\n\n"
                  "2\n00:00:03,320 --> 00:00:05,200\nTwo of the rollers are worn.\n"),
        ("a.vtt", "WEBVTT\n\n00:00.000 --> 00:03.320\nThe press prints about 400 brochures per hour.\n\n"
                  "00:03.320 --> 00:05.200\nTwo of the rollers are worn.\n"),
        ("a.tsv", "start\tend\ttext\n0\t3320\tThe press prints about 400 brochures per hour.\n"
                  "3320\t5200\tTwo of the rollers are worn.\n"),
        ("a.json", json.dumps({"segments": [
            {"text": " The press prints about 400 brochures per hour."},
            {"text": " Two of the rollers are worn.", "tokens": [5, 9, 5]}]})),
        ("a.json", json.dumps({"text": WORDS})),
    ],
)  # fmt: skip
def test_every_format_of_a_transcript_gives_the_same_list(
    draft: Path, texts: Path, tmp_path: Path, name: str, content: str
) -> None:
    """Tokens that do not give a segment's text are those of another vocabulary."""
    draft_head(draft, texts)
    expected = listed(draft)
    (tmp_path / name).write_text(content)
    draft_head(draft, tmp_path / name, "--overwrite")
    assert listed(draft).ids == expected.ids and listed(draft).counts == expected.counts


def test_the_tokens_of_a_transcript_are_taken_as_they_were_written(draft: Path) -> None:
    vocabulary = DraftVocabulary(draft)
    letters = [
        i
        for letter in " press"
        for i in vocabulary.tokenizer.encode(letter, add_special_tokens=False)
    ]
    usual = vocabulary.tokenizer.encode(" press", add_special_tokens=False)
    assert letters != usual
    assert vocabulary.count([Piece(" press", tuple(letters))]).total() == len(letters)
    assert set(vocabulary.count([Piece(" press")])) == set(usual)


def test_standard_input_and_folders_are_read(draft: Path, tmp_path: Path) -> None:
    draft_head(draft, "-", stdin=WORDS.encode())
    expected = listed(draft)
    folder = tmp_path / "calls" / "june"
    folder.mkdir(parents=True)
    (folder / "one.txt").write_text(WORDS)
    (folder / "other.json").write_text("[1, 2]")  # no transcript
    (folder / ".hidden.txt").write_text("quiet")
    (folder / "recording.flac").write_bytes(b"\xff")
    assert files_of([str(tmp_path / "calls")]) == [str(folder / "one.txt")]
    draft_head(draft, tmp_path / "calls", "--overwrite")
    assert listed(draft).ids == expected.ids


def test_the_size_is_a_number_or_a_share(draft: Path, texts: Path) -> None:
    draft_head(draft, texts, "--keep", "1620")
    assert len(listed(draft).ids) == 1620
    draft_head(draft, texts, "--coverage", "0.5", "--overwrite")
    assert 0.5 <= listed(draft).coverage < 0.6


def test_a_list_is_not_replaced_by_accident(draft: Path, texts: Path, tmp_path: Path) -> None:
    draft_head(draft, texts, "--output", tmp_path / "list.json")
    assert not (draft / FILE).exists() and (tmp_path / "list.json").exists()
    draft_head(draft, texts)
    before = (draft / FILE).read_text()
    with pytest.raises(UsageError, match="exists: --overwrite replaces it"):
        draft_head(draft, texts, "--keep", "1700")
    assert (draft / FILE).read_text() == before


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["{draft}", "nowhere.txt"], UsageError, "nowhere.txt: there is no such file"),
        (["{draft}", "{empty}"], UsageError, "holds no .json, .srt"),
        (["{draft}", "{blank}"], UsageError, "no text in these files"),
        (["{draft}", "{binary}"], UsageError, "cannot be read as text"),
        (["{draft}", "{list}"], UsageError, "is no transcript"),
        (["{draft}", "{texts}", "--keep", "9", "--coverage", "1"], UsageError, "give one of them"),
        (["{draft}", "{texts}", "--coverage", "1.5"], UsageError, "at most 1"),
        (["{draft}", "{texts}", "--output", "{blank}/x"], OutputError, "cannot write .* --output"),
        (["none", "{texts}"], UsageError, "drafts without a model"),
        (["ngram", "{texts}"], UsageError, "drafts without a model"),
        (["nothing", "{texts}"], ModelError, "neither a local folder"),
        (["{empty}", "{texts}"], ModelError, "has no config.json"),
        (["{bare}", "{texts}"], ModelError, "no usable configuration and tokenizer"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_cause(
    draft: Path, texts: Path, tmp_path: Path, arguments: list[str], kind: type, message: str
) -> None:
    places = {name: tmp_path / name for name in ("empty", "bare", "blank", "binary", "list")}
    places["list"] = tmp_path / "list.json"
    for name in ("empty", "bare"):
        places[name].mkdir()
    (places["bare"] / "config.json").write_text("{}")
    places["blank"].write_text(" \n")
    places["binary"].write_bytes(b"\xff\xfe\x00")
    places["list"].write_text("[1]")
    words = [word.format(draft=draft, texts=texts, **places) for word in arguments]
    with pytest.raises(ForescribeError, match=message) as caught:
        draft_head(*words)
    assert isinstance(caught.value, kind)
    assert not (draft / FILE).exists()


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    """The beginning of the sample."""
    samples, rate = soundfile.read(SAMPLES / "memo.flac", stop=12 * 16_000)
    soundfile.write(tmp_path / "memo.flac", samples, rate)
    return tmp_path / "memo.flac"


def test_a_transcript_is_the_same_with_a_list_and_nothing_else_is_drafted(
    draft: Path, memo: Path
) -> None:
    """The list is made from another recording, so some words of this one are not on it."""
    draft_head(draft, SAMPLES / "conversation.txt")
    listing = listed(draft)
    found = {}
    for name, gamma in (("plain", 0), ("fixed", 4), ("auto", None)):
        transcriber = Transcriber.load("tiny.en", str(draft), gamma=gamma, device="cpu", batch=2)
        if gamma != 0:
            assert transcriber.whisper.drafts[0].listed == listing.ids
        (outcome,) = transcriber.transcribe([memo], Options(language="en"))
        assert outcome.transcript is not None
        found[name] = [segment.tokens for segment in outcome.transcript.segments]
        if gamma == 4:
            assert transcriber.context.engine.stats.accepted > 20
    assert found["plain"] == found["fixed"] == found["auto"]
    assert {t for tokens in found["plain"] for t in tokens} - set(listing.ids)


def test_a_text_draft_uses_its_list(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(hub.path("text-draft"), tmp_path / "draft"))
    (tmp_path / "own.txt").write_text("The minutes of the sales meeting: the song was quiet. " * 3)
    draft_head(folder, tmp_path / "own.txt")
    how = TextOptions(max_tokens=40)
    prompt = 'Define "song".'
    plain = TextGenerator.load(hub.path("text"), None, gamma=0, device="cpu")
    cut = TextGenerator.load(hub.path("text"), folder, gamma=3, device="cpu")
    texts = [[c.text for c in made.generate([prompt], how)] for made in (plain, cut)]
    assert texts[0] == texts[1]
    (folder / FILE).write_text("{}")
    with pytest.raises(LoadError, match=r"--draft .* is no list of tokens: it lacks 'ids'"):
        TextGenerator.load(hub.path("text"), folder, device="cpu")


def test_a_damaged_list_of_a_speech_draft_is_an_error_of_the_model(draft: Path) -> None:
    (draft / FILE).write_text("{}")
    with pytest.raises(ModelError, match="is no list of tokens: it lacks 'ids'; make it again"):
        Transcriber.load("tiny.en", str(draft), device="cpu")


def test_a_byte_order_mark_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfPress")
    assert read(str(tmp_path / "a.txt")) == [Piece("Press")]


def test_a_draft_without_a_usable_tokenizer_is_refused_by_name(draft: Path, texts: Path) -> None:
    files = [draft / name for name in ("tokenizer.json", "vocab.json", "merges.txt")]
    for path in files:  # as `cp -r` copies links
        path.unlink(missing_ok=True)
        path.symlink_to(f"../there/{path.name}")
    with pytest.raises(
        ModelError, match=r"tokenizer\.json is a link to \.\./there/tokenizer\.json"
    ):
        DraftVocabulary(draft)
    for path in files:
        path.unlink()
    with pytest.raises(ModelError, match=r"it lacks tokenizer\.json"):
        draft_head(draft, texts)
    assert not (draft / FILE).exists()


def test_lists_of_languages_lie_side_by_side(draft: Path, tmp_path: Path) -> None:
    """Transcripts that name another language are left out of a language's list; without a known language the
    union is used, so that a batch of several languages has one head."""
    for name, language, text in (
        ("a.json", "en", " The press prints."),
        ("b.json", "fr", " Deux rouleaux."),
        ("c.json", None, " Kevin agreed."),
    ):
        entry = {"text": text} if language is None else {"text": text, "language": language}
        (tmp_path / "calls").mkdir(exist_ok=True)
        (tmp_path / "calls" / name).write_text(json.dumps(entry))
    draft_head(draft, tmp_path / "calls", "--language", "English")
    made = draft_head(draft, tmp_path / "calls", "--language", "fr")
    assert "draft_tokens.fr.json" in made.stdout
    assert sorted(path.name for path in draft.glob("draft_tokens*")) == [
        "draft_tokens.en.json",
        "draft_tokens.fr.json",
    ]
    tokenizer = DraftVocabulary(draft).tokenizer
    ids = {
        word: frozenset(tokenizer(f" {word}", add_special_tokens=False)["input_ids"])
        for word in ("The press prints.", "Deux rouleaux.", "Kevin agreed.")
    }
    english, french, both, other = (
        DraftTokens.beside(draft, 51864, language) for language in ("en", "fr", None, "de")
    )
    assert english is not None and french is not None and both is not None and other is None
    assert ids["The press prints."] | ids["Kevin agreed."] <= set(english.ids)
    assert not ids["Deux rouleaux."] <= set(english.ids)
    assert ids["Deux rouleaux."] <= set(french.ids)
    assert set(both.ids) == set(english.ids) | set(french.ids)
    assert both.occurrences == english.occurrences + french.occurrences
    assert english.source.startswith("en: a.json")
    # The one without a language stands in for languages without a list.
    draft_head(draft, tmp_path / "calls" / "c.json")
    assert DraftTokens.beside(draft, 51864, "de") == DraftTokens.read(draft / FILE, 51864)
    with pytest.raises(UsageError, match="no text in 'de'"):
        draft_head(draft, tmp_path / "calls" / "a.json", "--language", "de")
    with pytest.raises(UsageError, match="--language '12'"):
        draft_head(draft, tmp_path / "calls", "--language", "12")


def test_the_language_of_a_run_chooses_the_list(draft: Path) -> None:
    for language, text in (("en", "The press prints."), ("fr", "Deux rouleaux.")):
        (draft / f"{language}.txt").write_text(text)
        draft_head(draft, draft / f"{language}.txt", "--language", language)
    known = {name: DraftTokens.beside(draft, 51864, name) for name in ("en", None)}
    assert known["en"] != known[None]
    for name, listing in known.items():
        transcriber = Transcriber.load("tiny.en", str(draft), gamma=4, language=name, device="cpu")
        assert listing is not None and transcriber.whisper.drafts[0].listed == listing.ids
