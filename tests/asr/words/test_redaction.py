"""Redaction: what presidio's recognisers find, beside a spaCy pipeline that is made here, and what is left of
it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from forescribe.api.speech.answers import diarized, short, verbose
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.planned import Group
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.files import FORMATS
from forescribe.asr.live.events import LiveOptions
from forescribe.asr.words import redaction
from forescribe.asr.words.redaction import PERSONAL, Redactor, kinds_of
from tests.api.jobs.application import JOBS, application, ended, events, ready
from tests.asr.recordings import SAMPLES, cut

pytestmark = pytest.mark.usefixtures("encoded_once")

MEMO = cut("memo.flac", (0, 10.4), (25.2, 30.7))
PERSONS = ("Helen", "Porter", "Denver")
OPTIONS = Options(language="en", guards=Guards(), words=True, redact=("all",))


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    """A spaCy pipeline of English that knows a few names, where installed models are."""
    spacy = pytest.importorskip("spacy")
    pytest.importorskip("presidio_analyzer")
    made = spacy.blank("en")
    ruler = made.add_pipe("entity_ruler", config={"phrase_matcher_attr": "LOWER"})
    names = ("Helen Porter", "Hellen Porter", "Helen")
    patterns = [*(("PERSON", name) for name in names), ("GPE", "Denver")]
    ruler.add_patterns([{"label": label, "pattern": text} for label, text in patterns])
    name = "en_named_sm"
    made.to_disk(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(redaction, "installed_models", lambda: [name])
    redaction._analyzer.cache_clear()
    return name


@pytest.fixture(scope="module")
def bundled() -> Transcriber:
    return Transcriber.load(
        "tiny.en", "none", device="cpu", network=False, language="en", batch=4, gamma=0, beam_size=1
    )


def masked(text: str, kinds: tuple[str, ...], language: str = "en") -> str:
    for place in reversed(Redactor(kinds).places(text, language)):
        text = text[: place.start] + place.written + text[place.end :]
    return text


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Helen Porter's number is 212-555-0187.", "[PERSON]'s number is [PHONE_NUMBER]."),
        ("Mail helen@example.com", "Mail [EMAIL_ADDRESS]"),
        ("card 4111 1111 1111 1111 in Denver", "card [CREDIT_CARD] in [LOCATION]"),
        ("DE89 3704 0044 0532 0130 00", "[IBAN_CODE]"),
        ("about 400 brochures and $3,500", "about 400 brochures and $3,500"),
    ],
)
def test_marks_stand_in_place_of_personal_data(model, text, right) -> None:
    assert masked(text, ("all",)) == right


def test_patterns_need_no_model_of_a_language(monkeypatch) -> None:
    pytest.importorskip("presidio_analyzer")
    monkeypatch.setattr(redaction, "installed_models", list)
    redaction._analyzer.cache_clear()
    assert masked("ruf +49 30 901820 an", ("PHONE_NUMBER",), "de") == "ruf [PHONE_NUMBER] an"
    with pytest.raises(UsageError, match="spacy download de_core_news_sm"):
        Redactor(("all",)).check("de")
    with pytest.raises(UsageError, match="presidio finds no SHOE_SIZE; it finds .*IBAN_CODE"):
        masked("42", ("SHOE_SIZE",))


def test_the_largest_model_is_taken(monkeypatch) -> None:
    pytest.importorskip("presidio_analyzer")
    names = ["en_core_web_sm", "en_core_web_lg", "de_core_news_trf"]
    monkeypatch.setattr(redaction, "installed_models", lambda: names)
    assert Redactor(("all",))._model("en") == "en_core_web_lg"


def test_what_is_missing_is_told_with_its_command(monkeypatch) -> None:
    monkeypatch.setattr(redaction, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"redact needs presidio: run `.*redact"):
        Redactor(("all",))
    with pytest.raises(UsageError, match="'x y' is no kind of data; give all, or PERSON"):
        kinds_of(("x y",))
    assert kinds_of(("all", "uk_nhs", "AGE")) == (*PERSONAL, "AGE")
    with pytest.raises(UsageError, match="it cannot be redacted"):
        LiveOptions(options=Options(redact=("all",)))


def free(text: str) -> None:
    for name in PERSONS:
        assert name.lower() not in text.lower(), (name, text)


def test_nothing_of_it_stays_in_a_transcript(model, bundled, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    terms = replace(OPTIONS, terms=("Hellen Porter",), replacements=("denver => Denver, Colorado",))
    whole = replace(OPTIONS, redact=(), terms=("Hellen Porter",))
    seen = list[str]()
    for options in (OPTIONS, terms):
        (outcome,) = bundled.transcribe(
            [MEMO],
            replace(options, keep_encoder_states=True),
            hook=lambda progress: seen.extend(s.text for s in progress.segments),
        )
        assert outcome.error is None
        told = outcome.transcript
        assert told.text.count("[PERSON]") == 2 or options is terms
        assert told.text.count("[LOCATION]") == 1
        tokenizer = bundled.context.whisper.tokenizer
        for segment in told.segments:
            free(tokenizer.decode(segment.tokens) + segment.text)
            assert segment.corrections == ()
        bodies = [
            told.to_dict(),
            short(told, None),
            verbose(told, {"word", "segment"}),
            diarized(told),
        ]
        files = [FORMATS[name].render(told) for name in ("txt", "srt", "vtt", "tsv", "json", "md")]
        free(json.dumps(bodies) + "".join(files))
        decoded = tuple(replace(each, encoder_states=None) for each in outcome.decoded)
        kept = json.dumps(Group(decoded, (None,) * len(decoded), "en", None).to_dict())
        assert "spoken" not in kept and "origin" not in kept
        for each in outcome.decoded:
            free(tokenizer.decode([*each.result.tokens, *each.result.request.prompt]))
    free("".join(seen) + caplog.text)
    (plain,) = bundled.transcribe([MEMO], replace(whole, terms=()))
    old = {w.text.strip(" ."): w for w in reversed(plain.transcript.words)}
    (redacted,) = bundled.transcribe([MEMO], OPTIONS)
    first = next(w for w in redacted.transcript.words if "[PERSON]" in w.text)
    assert abs(first.start - old["Helen"].start) < 0.05
    assert old["Helen"].end < first.end < old["Porter"].end + 0.05


def test_a_language_that_cannot_be_redacted_is_not_written(bundled, monkeypatch) -> None:
    """Found out behind the decoding, where the language is detected."""
    pytest.importorskip("presidio_analyzer")
    monkeypatch.setattr(redaction, "installed_models", list)
    monkeypatch.setattr(Redactor, "check", lambda self, language: None)
    (outcome,) = bundled.transcribe([MEMO], OPTIONS)
    assert outcome.transcript is None and "spacy download en_core_web_sm" in str(outcome.error)


def test_nothing_of_it_stays_in_a_job(model, bundled, decoders, tmp_path, caplog) -> None:
    """In its events, its results, the database and the blobs; the audio is there until the job is deleted."""
    caplog.set_level(logging.DEBUG)
    folder, memo = tmp_path / "data", (SAMPLES / "memo.flac").read_bytes()
    with application(folder, bundled, decoders) as client:
        ready(client)
        given = {"language": "en", "redact": "all", "terms": "Hellen Porter *9"}
        answer = client.post(JOBS, files={"file": memo}, data=given)
        assert answer.status_code == 202, answer.text
        job = ended(client, answer.json()["id"])
        assert job["state"] == "succeeded"
        told = json.dumps([data for *_, data in events(client, job["id"])])
        for form in ("transcript", "verbose_json", "diarized_json", "srt", "docx"):
            at = f"{JOBS}/{job['id']}/result?response_format={form}"
            told += client.get(at).content.decode(errors="replace")
        assert "[PERSON]" in told
        free(told.replace("Hellen Porter *9", ""))  # the request's own list
        refused = client.post(JOBS, files={"file": memo}, data={"redact": "name s"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "redact"
    free(caplog.text)
    stored = [path for path in folder.rglob("*") if path.is_file()]
    assert stored
    for path in stored:
        data = path.read_bytes()
        if data[:4] == b"fLaC":
            continue
        text = data.decode(errors="replace").replace(
            "Hellen Porter *9", ""
        )  # the request's own list
        for name in ("Helen Porter", "Denver"):
            assert name not in text, path
