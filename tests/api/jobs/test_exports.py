"""Recordings get names, and their transcripts leave as files: one by one, or all in a zip."""

from __future__ import annotations

import json
from io import BytesIO
from zipfile import ZipFile

import pytest
from docx import Document

from forescribe.api.access.keys import digest, new_key
from forescribe.api.errors import ApiError
from tests.api.conftest import memo
from tests.api.jobs.application import JOBS, application, ended, ready, submit
from tests.api.page.fakejobs import transcript


@pytest.fixture(scope="module")
def client(tmp_path_factory, transcriber, decoders):
    """A service with two recordings of one name, the first of them corrected."""
    with application(tmp_path_factory.mktemp("exports"), transcriber, decoders) as client:
        for number in ("2", "1"):
            job = submit(ready(client), memo(12), diarize="true", num_speakers=number).json()["id"]
            assert ended(client, job)["state"] == "succeeded"
        yield client


@pytest.fixture
def job(client):
    """The id of the first one, under its first name."""
    id = client.get(JOBS).json()["data"][-1]["id"]
    client.patch(f"{JOBS}/{id}", json={"label": "talk"})
    return id


def archive(client, form: str) -> dict[str, bytes]:
    answer = client.get(f"{JOBS}/archive", params={"response_format": form})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/zip"
    with ZipFile(BytesIO(answer.content)) as found:
        assert found.testzip() is None
        return {name: found.read(name) for name in found.namelist()}


def words(document: bytes) -> list[str]:
    return [paragraph.text for paragraph in Document(BytesIO(document)).paragraphs]


def test_a_recording_is_called_anew_and_keeps_its_ending(client, job) -> None:
    for given, label in (
        ("Monday / 🚚 <b>", "Monday / 🚚 <b>.wav"),
        ("  b.WAV ", "b.WAV"),
        ("x" * 251, "x" * 251 + ".WAV"),
        ("v1.2\nnotes", "v1.2notes.WAV"),
        ("talk.wav", "talk.wav"),
    ):
        answer = client.patch(f"{JOBS}/{job}", json={"label": given})
        assert answer.status_code == 200 and answer.json()["label"] == label
        assert client.get(f"{JOBS}/{job}").json()["label"] == label
    audio = client.get(f"{JOBS}/{job}/audio")
    assert audio.headers["content-type"] == "audio/x-wav"


@pytest.mark.parametrize(
    "body", [{}, {"label": " \n"}, {"label": 3}, {"label": "a", "b": 1}, {"label": "x" * 252}]
)
def test_what_is_no_name_is_refused(client, job, body) -> None:
    answer = client.patch(f"{JOBS}/{job}", json=body)
    assert answer.status_code == 400 and client.get(f"{JOBS}/{job}").json()["label"] == "talk.wav"
    assert client.patch(f"{JOBS}/job_{'0' * 32}", json={"label": "a"}).status_code == 404


def test_each_format_is_a_file_with_the_names_that_people_gave(client, job) -> None:
    at = f"{JOBS}/{job}"
    tag = client.get(f"{at}/corrections").headers["etag"]
    segments = client.get(f"{at}/result?response_format=transcript").json()["segments"]
    body = {"segments": [*range(len(segments))], "names": {"Speaker A": "Zoë"}}
    put = client.put(f"{at}/corrections", json=body, headers={"If-Match": tag})
    assert put.status_code == 200
    client.patch(at, json={"label": "Monday"})
    found = {
        form: client.get(f"{at}/result", params={"response_format": form})
        for form in ("txt", "srt", "vtt", "tsv", "rttm", "transcript", "md", "docx")
    }
    assert {form: one.status_code for form, one in found.items()} == dict.fromkeys(found, 200)
    document = words(found.pop("docx").content)
    assert document[:2] == ["Monday", "Zoë"]
    assert found["md"].text.startswith("# Monday\n\n**")
    assert found["md"].headers["content-type"].startswith("text/markdown")
    for form, answer in found.items():
        assert "Zoë" in answer.text and "Speaker A" not in answer.text.replace("_", " "), form
    client.delete(f"{at}/corrections")


def test_all_of_them_are_one_zip_in_which_equal_names_are_told_apart(client, job) -> None:
    assert archive(client, "txt").keys() == {"talk.txt", "talk (2).txt"}
    found = archive(client, "docx")
    assert [words(one)[0] for one in found.values()] == ["talk", "talk"]
    assert json.loads(archive(client, "json")["talk.json"])["segments"]
    client.patch(f"{JOBS}/{job}", json={"label": '../a\\b: "c"? 🚚.wav'})
    assert archive(client, "md").keys() == {"talk.md", "_a_b_ _c__ 🚚.md"}
    assert client.get(f"{JOBS}/archive?response_format=mp3").status_code == 400
    ids = [one["id"] for one in client.get(JOBS).json()["data"]]
    for id in ids:
        client.patch(f"{JOBS}/{id}", json={"label": "会議" * 120})
    names = archive(client, "docx").keys()
    assert len(names) == 2 and max(len(name.encode()) for name in names) <= 255
    client.patch(f"{JOBS}/{ids[0]}", json={"label": "talk"})


def test_words_are_found_in_all_results_as_they_are_now(client, job, monkeypatch) -> None:
    store, later = client.app.state.jobs.store, client.get(JOBS).json()["data"][0]["id"]
    read, said = store.files.read, transcript([("A", "In the café we met."), ("B", "At ten.")])
    body = json.dumps(said.to_dict()).encode()
    monkeypatch.setattr(
        store.files, "read", lambda id, name: body if name.startswith("result") else read(id, name)
    )
    met = said.segments[0].words[4].start

    def found(words: str, **given: str) -> dict:
        answer = client.get(f"{JOBS}/search", params={"q": words, **given})
        assert answer.status_code == 200
        return answer.json()

    def places(words: str) -> dict[str, list]:
        return {one["job"]["id"]: one["places"] for one in found(words)["data"]}

    place = {"start": met, "text": "In the café we met. At ten."}
    assert places("MET.\n at ") == {later: [place], job: [place]}, "the latest first"
    cafe = said.segments[0].words[2].start
    assert places("cafe")[job] == places("CAFE\u0301")[job] == [{**place, "start": cafe}]
    at = f"{JOBS}/{job}/corrections"
    tag = client.get(at).headers["etag"]
    new = {"start": 1.0, "end": 2.0, "text": " Ask Zoë (50 % of it)."}
    assert client.put(at, json={"segments": [new]}, headers={"If-Match": tag}).status_code == 200
    assert places("zoe (50 %") == {job: [{"start": 1.0, "text": "Ask Zoë (50 % of it)."}]}
    assert places("met.") == {later: [place]}
    client.delete(at)
    client.patch(f"{JOBS}/{job}", json={"label": "Käse"})
    assert places("kase") == {job: []}
    assert found("nobody says this") == {"object": "list", "data": [], "after": None}
    monkeypatch.setattr("forescribe.api.jobs.service.PAGE", 1)
    early, late = found("met"), found("met", after=later)
    assert [one["job"]["id"] for one in early["data"] + late["data"]] == [later, job]
    assert (early["after"], late["after"]) == (later, None)


def test_a_search_for_nothing_or_behind_nothing_is_refused(client, job) -> None:
    unknown = {"q": "a", "after": f"job_{'0' * 32}"}
    for given in ({}, {"q": "  "}, {"q": "x" * 201}, unknown):
        assert client.get(f"{JOBS}/search", params=given).status_code == 400, given
    accent = client.get(f"{JOBS}/search", params={"q": "\u0301"})  # on the way to its letter
    assert (accent.status_code, accent.json()["data"]) == (200, [])


def test_what_cannot_be_had_is_named_in_the_zip(client, job, monkeypatch) -> None:
    corrected = client.app.state.jobs.corrected
    usual = corrected.transcript

    def broken(id: str, owner: str):
        if id == job:
            raise ApiError("conflict", "the corrections belong to an earlier result")
        return usual(id, owner)

    monkeypatch.setattr(corrected, "transcript", broken)
    found = archive(client, "vtt")
    assert found.keys() == {"talk.vtt", "talk (2).missing.txt"}
    assert b"an earlier result" in found["talk (2).missing.txt"]


def test_zip_and_search_have_the_results_of_their_own_key_alone(
    tmp_path, transcriber, decoders
) -> None:
    keys = {name: new_key() for name in ("anna", "bob")}
    given = {"api_keys": {name: digest(key) for name, key in keys.items()}}
    with application(tmp_path, transcriber, decoders, **given) as client:
        ready(client)
        client.headers["Authorization"] = f"Bearer {keys['anna']}"
        job = submit(client, memo(5)).json()["id"]
        assert ended(client, job)["state"] == "succeeded"
        assert archive(client, "txt").keys() == {"talk.txt"}
        client.headers["Authorization"] = f"Bearer {keys['bob']}"
        assert archive(client, "txt") == {}
        assert client.get(f"{JOBS}/search?q=talk").json()["data"] == []
        assert client.patch(f"{JOBS}/{job}", json={"label": "mine"}).status_code == 404
