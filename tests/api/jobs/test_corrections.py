"""Corrections of a job's transcript over HTTP: what is saved, what follows, and what is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from forescribe.api.errors import ApiError, checked
from forescribe.api.jobs import corrections as module
from forescribe.api.jobs.corrections import Corrections
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Turn, samples_at
from tests.api.conftest import memo
from tests.api.jobs.application import JOBS, application, ended, files, ready, submit
from tests.api.page.fakejobs import transcript

HOSTILE = "<img src=x onerror=alert(1)>--> {\\an8}"


@pytest.fixture(scope="module")
def done(tmp_path_factory, transcriber, decoders):
    """A service, a finished job of it with two speakers, and the folder."""
    folder = tmp_path_factory.mktemp("corrections")
    with application(folder, transcriber, decoders) as client:
        job = submit(ready(client), memo(12), diarize="true", num_speakers="2").json()["id"]
        assert ended(client, job)["state"] == "succeeded"
        yield client, f"{JOBS}/{job}", folder


@pytest.fixture
def job(done):
    """The client and the job's address, without corrections."""
    client, at, _ = done
    client.delete(f"{at}/corrections")
    yield client, at


def original(client, at) -> dict:
    return client.get(f"{at}/result?response_format=transcript&corrected=false").json()


def etag(client, at) -> str:
    return client.get(f"{at}/corrections").headers["etag"]


def put(client, at, body, tag=None):
    headers = {"If-Match": tag or etag(client, at)}
    return client.put(f"{at}/corrections", json=body, headers=headers)


def changed(client, at, text: str) -> dict:
    """The first segment with one new word in front of its own."""
    first, count = original(client, at)["segments"][0], len(original(client, at)["segments"])
    start, end = first["start"], first["end"]
    own = list(range(len(first["words"])))
    new = {"start": start, "end": end, "text": f" {text}{first['text']}", "speaker": "Speaker B"}
    words = [[f" {text}", start, start], *own]
    return {"segments": [{**new, "words": words}, *range(1, count)], "note": f"Added {text}"}


def test_every_format_follows_and_the_original_stays(job) -> None:
    client, at = job
    before = original(client, at)
    none = client.get(f"{at}/corrections")
    assert none.json()["version"] == 0 and none.json()["segments"] is None
    body = changed(client, at, HOSTILE) | {"names": {"Speaker B": "Zoë <b>"}}
    saved = put(client, at, body)
    assert saved.status_code == 200, saved.text
    assert saved.json()["version"] == 1 and saved.headers["etag"] == etag(client, at)
    found = client.get(f"{at}/corrections").json()
    assert found == saved.json() and found["segments"][1:] == body["segments"][1:]
    told = client.get(f"{at}/result?response_format=transcript").json()
    first = told["segments"][0]
    assert (
        first["text"] == f" {HOSTILE}{before['segments'][0]['text']}"
        and first["speaker"] == "Zoë <b>"
    )
    kept = [w["start"] for w in before["segments"][0]["words"]]
    assert [w["start"] for w in first["words"]][1:] == kept, "words that stay keep their times"
    assert first["words"][1]["probability"] == before["segments"][0]["words"][0]["probability"]
    assert told["segments"][1:] and told["settings"]["corrected"] is True
    assert Transcript.from_dict(told).to_dict() == told
    for form in ("json", "text", "srt", "vtt", "tsv", "verbose_json", "diarized_json"):
        answer = client.get(f"{at}/result", params={"response_format": form})
        assert "onerror" in answer.text, form
        assert "-->" not in "".join(answer.text.split("onerror")[1:2])[:20] or form not in (
            "srt",
            "vtt",
        )
    assert "&lt;img" in client.get(f"{at}/result?response_format=vtt").text
    assert "Zoë" in client.get(f"{at}/result?response_format=rttm").text
    assert original(client, at) == before
    assert client.delete(f"{at}/corrections").status_code == 204
    assert client.get(f"{at}/result?response_format=transcript").json() == before


def test_speakers_are_renamed_and_merged_everywhere(job) -> None:
    client, at = job
    count = len(original(client, at)["segments"])
    whole = {"segments": list(range(count))}
    merged = {"merged": {"Speaker B": "Speaker A"}, "names": {"Speaker A": "Anna"}}
    assert put(client, at, whole | merged).status_code == 200
    told = client.get(f"{at}/result?response_format=transcript").json()
    assert (
        {s["speaker"] for s in told["segments"]}
        == {turn["speaker"] for turn in told["turns"]}
        == {"Anna"}
    )
    assert {w["speaker"] for s in told["segments"] for w in s["words"]} == {"Anna"}


def spoken(*turns: tuple[float, float, str]) -> Transcript:
    """Ann says six words from 0.5 to 2.9 s, Bob two from 3.4 to 4.2 s; the turns are given."""
    told = transcript([("Ann", "One two three. Four five six."), ("Bob", "Seven eight.")])
    made = tuple(Turn(samples_at(start), samples_at(end), who, 0.9) for start, end, who in turns)
    return replace(told, turns=made)


def piece(start: float, end: float, text: str, speaker: str | None, words: list) -> dict:
    return {"start": start, "end": end, "text": text, "speaker": speaker, "words": words}


def follows(told: Transcript, *segments: int | dict) -> list[tuple[float, float, str]]:
    """The turns with the corrections."""
    made = checked(Corrections, {"segments": list(segments)}).apply(told)
    assert made.to_rttm().count("SPEAKER") == len(made.turns)
    return [(turn.start, turn.end, turn.speaker) for turn in made.turns]


ANN, BOB, CROSS = (0.4, 3.0, "Ann"), (3.3, 4.3, "Bob"), (2.0, 2.6, "Bob")
HALVES = piece(0.5, 1.7, " One two three.", "Ann", [0, 1, 2]), [3, 4, 5]


def test_turns_follow_the_words_that_are_given_to_others() -> None:
    told, (first, rest) = spoken(ANN, CROSS, BOB), HALVES
    same = [ANN, CROSS, BOB]
    assert follows(told, 0, 1) == same
    typed = piece(0.5, 2.9, " One to. Four five six.", "Ann", [0, [" to.", 0.9, 1.7], 3, 4, 5])
    assert follows(told, typed, 1) == same, "another text, by nobody else"
    assert follows(told, first, piece(1.7, 2.9, " Four five six.", "Ann", rest), 1) == same
    given = follows(told, first, piece(1.7, 2.9, " Four five six.", "Cy", rest), 1)
    assert given == [(0.4, 1.7, "Ann"), (1.7, 3.0, "Cy"), CROSS, BOB], "an overlap stays"
    given = follows(told, first, piece(1.7, 2.9, " Four five six.", "Bob", rest), 1)
    assert given == [(0.4, 1.7, "Ann"), (1.7, 3.0, "Bob"), BOB], "one turn of what overlaps"
    assert follows(told, 1) == same, "what was deleted was said"
    assert follows(spoken(), first, 1) == []
    unknown = follows(told, first, piece(1.7, 2.9, " Four five six.", None, rest), 1)
    assert unknown == [(0.4, 1.7, "Ann"), CROSS, BOB]


def test_turns_without_words_follow_who_has_none_left() -> None:
    told, cough = spoken(ANN, BOB, (4.5, 4.7, "Ann")), (4.5, 4.7, "Cy")
    text = " One two three. Four five six."
    assert follows(told, piece(0.5, 2.9, text, "Cy", [*range(6)]), 1) == [
        (0.4, 3.0, "Cy"),
        BOB,
        cough,
    ]
    told = spoken(BOB)
    cy = piece(0.5, 2.9, text, "Cy", [*range(6)])
    assert follows(told, cy, 1) == [(0.5, 2.9, "Cy"), BOB], "nobody was heard there"
    assert follows(told, {**cy, "words": None}, 1) == [(0.5, 2.9, "Cy"), BOB]


def test_every_format_agrees_on_who_speaks(job) -> None:
    client, at = job
    first, *rest = original(client, at)["segments"]
    given = {key: first[key] for key in ("start", "end", "text")} | {"speaker": "Cy"}
    words = list(range(len(first["words"])))
    body = {"segments": [given | {"words": words}, *range(1, len(rest) + 1)]}
    assert put(client, at, body).status_code == 200

    def told(form: str) -> str:
        return client.get(f"{at}/result", params={"response_format": form}).text

    whole = client.get(f"{at}/result?response_format=transcript").json()
    spoken = [turn for turn in whole["turns"] if turn["speaker"] == "Cy"]
    assert spoken and spoken[0]["start"] < first["end"] and spoken[-1]["end"] > first["start"]
    assert " Cy " in told("rttm") and told("txt").startswith("Cy: ") and "[Cy]: " in told("srt")


def test_of_two_who_change_the_same_version_one_is_told(job) -> None:
    client, at = job
    tag, body = etag(client, at), changed(client, at, "first")
    assert client.put(f"{at}/corrections", json=body).status_code == 428
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: put(client, at, body | {"note": f"{n}"}, tag), range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    stale = next(answer for answer in answers if answer.status_code == 412)
    assert stale.json()["error"]["code"] == "version_conflict"
    assert client.get(f"{at}/corrections").json()["version"] == 1


def test_earlier_versions_can_be_read_and_the_oldest_are_dropped(job, monkeypatch) -> None:
    client, at = job
    monkeypatch.setattr(module, "MAX_VERSIONS", 3)
    for n in range(5):
        assert put(client, at, changed(client, at, f"v{n}")).status_code == 200
    history = client.get(f"{at}/corrections").json()["history"]
    assert [(entry["version"], entry["note"]) for entry in history] == [
        (3, "Added v2"),
        (4, "Added v3"),
        (5, "Added v4"),
    ]
    old = client.get(f"{at}/corrections?version=3").json()
    assert old["segments"][0]["text"].startswith(" v2")
    assert client.get(f"{at}/corrections?version=2").status_code == 404


WORD = [" a", 0.0, 0.1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"segments": [0, 0]},
        {"segments": [10**6]},
        {"segments": [-1]},
        {"segments": [True]},
        {"segments": ["0"]},
        {"segments": [], "unknown": 1},
        {"segments": [{"start": 1.0, "end": 0.5, "text": "a"}]},
        {"segments": [{"start": 0.0, "end": 1e6, "text": "a"}]},
        {"segments": [{"start": 0.0, "end": 1.0, "text": "a" * 20_001}]},
        {"segments": [{"start": 0.0, "end": 1.0, "text": "b", "words": [WORD]}]},
        {"segments": [{"start": 0.0, "end": 1.0, "text": " a a", "words": [WORD, [" a", 0.5]]}]},
        {"segments": [{"start": 0.0, "end": 1.0, "text": " a", "words": [10**6]}]},
        {"segments": [], "names": {"Speaker A": " "}},
        {"segments": [], "names": {"A": "a" * 201}},
        {"segments": [], "names": {str(n): "a" for n in range(501)}},
        {"segments": [], "merged": {"A": "B", "B": "C"}},
        {"segments": [], "note": "a" * 201},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(job, body) -> None:
    client, at = job
    answer = put(client, at, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_value"
    assert client.get(f"{at}/corrections").json()["version"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": -1}, "segments[1].start: Input should be greater than or equal to 0"),
        ({"speaker": " "}, "segments[1].speaker: String should match"),
        ({"words": [0, ["a", 1, "2"]]}, "segments[1].words[1][2]: Input should be a valid number"),
        ({"unknown": 1}, "segments[1].unknown: is not a field"),
    ],
)
def test_a_wrong_segment_is_refused_by_its_place(changes, message) -> None:
    segment = {"start": 0.0, "end": 1.0, "text": "a"} | changes
    with pytest.raises(ApiError, match=re.escape(message)):
        checked(Corrections, {"segments": [0, segment]})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"segments": [' + b"[" * 10_000, 400),
        (b'{"segments": [], "note": "\\ud800"}', 400),
        (b'{"segments": [], "note": "' + b"a" * (5 << 20) + b'"}', 413),
    ],
)
def test_a_hostile_body_is_refused(job, body, status) -> None:
    client, at = job
    headers = {"If-Match": etag(client, at), "Content-Type": "application/json"}
    assert client.put(f"{at}/corrections", content=body, headers=headers).status_code == status


def test_new_speakers_do_not_replace_corrections(job) -> None:
    client, at = job
    assert put(client, at, changed(client, at, "kept")).status_code == 200
    answer = client.post(f"{at}/diarize", json={"num_speakers": 1})
    assert answer.status_code == 409 and "corrections" in answer.text
    assert client.get(f"{at}/corrections").json()["version"] == 1
    stale = etag(client, at)
    assert client.delete(f"{at}/corrections").status_code == 204
    none = etag(client, at)
    assert client.post(f"{at}/diarize", json={"num_speakers": 2}).status_code == 202
    assert ended(client, at.rpartition("/")[2])["state"] == "succeeded"
    assert put(client, at, {"segments": []}, stale).status_code == 412
    now = etag(client, at)
    assert (now == none) == (put(client, at, {"segments": []}, none).status_code == 200)


def test_a_job_without_a_result_has_no_corrections(job) -> None:
    client, _ = job
    at = f"{JOBS}/job_{'0' * 32}"
    for answer in (client.get(f"{at}/corrections"), put(client, at, {"segments": []}, '"0"')):
        assert answer.status_code == 404


@pytest.mark.parametrize("moment", ["file", "row", "commit"])
def test_a_death_while_saving_leaves_the_old_version_or_the_new_one(
    tmp_path, transcriber, decoders, monkeypatch, moment
) -> None:
    """The process ends in the middle of a save; the next one opens the same folder."""
    with application(tmp_path, transcriber, decoders) as client:
        job = submit(ready(client), memo(4)).json()["id"]
        assert ended(client, job)["state"] == "succeeded"
        at = f"{JOBS}/{job}"
        assert put(client, at, changed(client, at, "old")).status_code == 200
        body, tag, store = changed(client, at, "new"), etag(client, at), client.app.state.jobs.store

        def dies(*args: object, **kwargs: object) -> None:
            raise SystemExit

        with monkeypatch.context() as patched:
            # What a dead process does not do either: remove the file that has no row.
            patched.setattr(store.files, "delete", lambda id, name: None)
            if moment == "file":
                patched.setattr(store, "transaction", dies)
            elif moment == "row":
                patched.setattr(store.jobs, "update", dies)
            else:
                patched.setattr(module.Version, "view", dies)
            saved = client.app.state.jobs.corrected
            with pytest.raises(SystemExit):
                saved.put(job, "", checked(Corrections, body), tag).view()
    with application(tmp_path, transcriber, decoders) as client:
        found = ready(client).get(f"{at}/corrections").json()
        assert found["version"] == (2 if moment == "commit" else 1)
        text = client.get(f"{at}/result?response_format=text").text
        assert text.startswith("new" if moment == "commit" else "old")
        store = client.app.state.jobs.store
        stored = {path.name for path in (store.files.root / job).iterdir()}
        assert set(store.jobs.get(job).files.values()) <= stored
        assert client.delete(at).status_code == 204
    assert b"Added old" not in files(tmp_path) and not (tmp_path / "files" / job).exists()
