"""Jobs over HTTP: what is promised, what is seen on the way, what comes out."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock
from urllib.parse import unquote

import pytest
from sqlalchemy.exc import OperationalError

from forescribe.api.access.keys import digest, new_key
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import Claim, Job
from forescribe.api.jobs.walk import Run, RunReplaced, Stopping, Walk
from forescribe.asr.formats.files import srt as render_srt
from forescribe.asr.formats.subtitles import LineRules
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.segment import cut_plan
from tests.api.conftest import memo, silence, sound, until
from tests.api.jobs.application import (
    FORM,
    JOBS,
    application,
    ended,
    events,
    files,
    ready,
    stages,
    submit,
)

LONG_S = 100


@pytest.fixture(scope="module")
def long() -> bytes:
    """Four windows of speech: two groups, as they are here."""
    return sound(LONG_S)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch) -> None:
    monkeypatch.setattr("forescribe.asr.segment.cut_plan.GROUP_SIZE", 2)


def plain(client, audio: bytes) -> str:
    """What the route that waits says of it."""
    form = {**FORM, "model": "random", "response_format": "text"}
    answer = client.post("/v1/audio/transcriptions", files={"file": audio}, data=form)
    assert answer.status_code == 200
    return answer.text


def test_a_job_says_what_the_route_that_waits_says(client, long) -> None:
    answer = submit(client, long)
    job = answer.json()
    assert answer.status_code == 202 and answer.headers["location"] == f"{JOBS}/{job['id']}"
    assert job["object"] == "job" and job["label"] == "talk.wav" and job["error"] is None
    assert job["progress"]["total_s"] == LONG_S
    over = ended(client, job["id"])
    assert over["state"] == "succeeded" and over["speed"] > 0
    assert over["progress"] == {"done_s": LONG_S, "total_s": LONG_S}
    assert over["created_at"] <= over["started_at"] <= over["finished_at"]
    result = f"{JOBS}/{job['id']}/result"
    assert client.get(result, params={"response_format": "text"}).text == plain(client, long)
    whole = client.get(result, params={"response_format": "transcript"}).json()
    assert Transcript.from_dict(whole).coverage.sample_count == LONG_S * 16_000
    assert any(segment["words"] for segment in whole["segments"])


def test_a_running_job_says_what_is_done(client, held) -> None:
    job = submit(client, memo(12), diarize="true").json()
    assert job["stage"] is None, "it waits"
    at = f"{JOBS}/{job['id']}"
    until(lambda: client.get(at).json()["stage"] == "transcribing")
    threading.Timer(1.0, held.set).start()
    seen = stages(client, job["id"])
    assert seen in (["transcribing"], ["transcribing", "diarizing"]), "the last may be short"
    assert ended(client, job["id"])["stage"] is None


def test_every_format_comes_from_what_was_decoded(client) -> None:
    job = submit(client, memo(12), diarize="true", num_speakers="2").json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    found = {}
    for form in ("json", "text", "srt", "vtt", "tsv", "verbose_json", "diarized_json", "rttm"):
        answer = client.get(f"{JOBS}/{job}/result", params={"response_format": form})
        assert answer.status_code == 200, form
        found[form] = answer
    text = found["json"].json()["text"]
    assert text and found["text"].text.strip() == text
    kinds = {form: one.headers["content-type"].split(";")[0] for form, one in found.items()}
    assert kinds["vtt"] == "text/vtt" and kinds["srt"] == kinds["text"] == "text/plain"
    assert found["vtt"].text.startswith("WEBVTT") and found["tsv"].text.startswith("start\tend")
    assert all(segment["speaker"] for segment in found["diarized_json"].json()["segments"])
    assert len(found["rttm"].text.splitlines()) == 2
    assert found["verbose_json"].json()["words"] and found["verbose_json"].json()["segments"]
    assert client.get(f"{JOBS}/{job}/result?response_format=mp3").status_code == 400
    srt = f"{JOBS}/{job}/result?response_format=srt&"
    whole = client.get(f"{JOBS}/{job}/result?response_format=transcript").json()
    shaped = client.get(f"{srt}max_line_width=30&max_line_count=2").text
    assert shaped == render_srt(Transcript.from_dict(whole), LineRules(30, 2))
    assert "[Speaker A]" in shaped != found["srt"].text
    assert "peaker" not in client.get(f"{srt}max_line_width=30&speaker_names=false").text
    for refused in (f"{srt}max_line_count=2", f"{srt[:-4]}text&max_line_width=30"):
        assert client.get(refused).status_code == 400


def test_events_tell_all_in_order_and_go_on_behind_any_of_them(client, long) -> None:
    job = submit(client, long).json()["id"]
    seen = events(client, job)
    kinds = [kind for kind, _, _ in seen]
    assert kinds[0] == "state" and kinds[-1] == "done" and kinds.count("done") == 1
    assert [data["state"] for kind, _, data in seen if kind == "state"] == [
        "queued",
        "running",
        "succeeded",
    ]
    done = [data["done_s"] for kind, _, data in seen if kind == "progress"]
    assert done == sorted(done) and done[-1] == LONG_S and len(done) == 3
    segments = [s for kind, _, data in seen if kind == "segment" for s in data["segments"]]
    assert [s["id"] for s in segments] == list(range(len(segments)))
    text = client.get(f"{JOBS}/{job}/result").json()["text"]
    assert "".join(s["text"] for s in segments).strip() == text
    log = [(kind, n) for kind, n, _ in seen]
    assert [n for _, n in log[:-1]] == list(range(1, len(log)))
    for n in (1, 4, len(log) - 1):
        rest = [(kind, at) for kind, at, _ in events(client, job, after=n)]
        assert rest == [*log[n:-1], log[-1]]


@pytest.mark.parametrize(("sent", "told"), [({}, 1), ({"beam_size": "auto"}, "auto")])
def test_a_job_tells_how_its_windows_were_searched(client, sent, told) -> None:
    """As the model is, of one beam here, unless it asks otherwise."""
    job = submit(client, sound(2), **sent).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    whole = client.get(f"{JOBS}/{job}/result", params={"response_format": "transcript"}).json()
    assert whole["settings"]["beam_size"] == told


def test_silence_is_a_job_too(client) -> None:
    job = submit(client, silence(3)).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    assert client.get(f"{JOBS}/{job}/result").json()["text"] == ""


def test_a_files_name_comes_back_as_it_was(client) -> None:
    """Forms hold a quote and line breaks as %22, %0D and %0A (WHATWG); tus holds names as they are."""
    name = 'the "best" of ä & 100%.wav'
    long = f"{'x' * 300}.wav"
    cut = f"{'x' * 250}….wav"  # 255 characters, and still a wav
    for sent, label in ((name, name), ("a\r\nb%20c.wav", "a  b%20c.wav"), (long, cut)):
        answer = client.post(JOBS, files={"file": (sent, memo(1))}, data=FORM)
        assert answer.json()["label"] == label
        audio = client.get(f"{JOBS}/{answer.json()['id']}/audio")
        told = audio.headers["content-disposition"]
        assert told.startswith("inline; filename*=utf-8''")
        assert unquote(told.partition("''")[2]) == label
        ended(client, answer.json()["id"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "true"}, "stream"),
        ({"num_speakers": "2"}, "num_speakers"),
        ({"diarize": "maybe"}, "diarize"),
        ({"webhook_url": "https://example.org"}, "webhook_secret"),
        (
            {"webhook_url": "file:///etc/passwd", "webhook_secret": "whsec_" + "A" * 32},
            "webhook_url",
        ),
        ({"webhook_secret": "whsec_" + "A" * 32}, "webhook_secret"),
        ({"colour": "blue"}, "colour"),
        ({"language": "tlh"}, "language"),
    ],
)
def test_what_cannot_be_done_is_refused_at_the_door(client, tmp_path, fields, param) -> None:
    answer = submit(client, memo(1), **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert client.get(JOBS).json()["data"] == []


def test_what_is_no_audio_is_no_job_and_leaves_nothing(client, tmp_path) -> None:
    answer = submit(client, b"MARKER is no audio" * 100)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_audio"
    assert b"MARKER" not in files(tmp_path)


def test_a_key_makes_one_job_of_the_same_request(client) -> None:
    headers = {"Idempotency-Key": "mine"}
    first = submit(client, memo(2), headers=headers)
    second = submit(client, memo(2), headers=headers)
    assert first.status_code == second.status_code == 202
    assert first.json()["id"] == second.json()["id"]
    other = submit(client, memo(2), headers=headers, prompt="another")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    client.app.state.jobs.submissions.receiving.add(("", "coming"))
    early = submit(client, memo(2), headers={"Idempotency-Key": "coming"})
    assert (early.status_code, early.json()["error"]["code"]) == (409, "in_progress")
    assert len(client.get(JOBS).json()["data"]) == 1
    ended(client, first.json()["id"])


def test_the_same_key_at_the_same_time_is_one_job(client) -> None:
    def send(_):
        return submit(client, memo(2), headers={"Idempotency-Key": "twice"})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, range(4)))
    accepted = {a.json()["id"] for a in answers if a.status_code == 202}
    assert len(accepted) == 1
    assert {a.status_code for a in answers} <= {202, 409}
    ended(client, accepted.pop())


def test_a_list_goes_on_where_it_ended(client) -> None:
    made = [submit(client, sound(1, seed)).json()["id"] for seed in range(3)]
    seen, after = [], None
    while True:
        page = client.get(JOBS, params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [job["id"] for job in page["data"]]
        after = seen[-1]
        if not page["has_more"]:
            break
    assert seen == made[::-1]
    for job in made:
        ended(client, job)


def test_a_job_is_its_own_keys(tmp_path, transcriber, decoders) -> None:
    keys = {name: new_key() for name in ("one", "two")}
    hashes = {name: digest(key) for name, key in keys.items()}
    with application(tmp_path, transcriber, decoders, api_keys=hashes) as client:
        ready(client)

        def as_(name: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {keys[name]}"}

        job = submit(client, memo(1), headers=as_("one")).json()["id"]
        assert client.get(f"{JOBS}/{job}", headers=as_("one")).status_code == 200
        for method, path in (
            ("GET", ""),
            ("GET", "/events"),
            ("GET", "/result"),
            ("GET", "/audio"),
            ("POST", "/cancel"),
            ("POST", "/retry"),
            ("POST", "/diarize"),
            ("DELETE", ""),
        ):
            answer = client.request(method, f"{JOBS}/{job}{path}", headers=as_("two"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")
        assert client.get(JOBS, headers=as_("two")).json()["data"] == []
        assert client.get(JOBS).status_code == 401
        until(lambda: client.get(f"{JOBS}/{job}", headers=as_("one")).json()["finished_at"])


def test_a_cancelled_job_frees_its_rows_and_writes_no_more(client, held, transcriber, long) -> None:
    job = submit(client, long).json()["id"]
    until(lambda: transcriber.engine.free == 0)
    assert client.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"
    serving = client.app.state.serving
    held.set()
    until(lambda: serving.session.idle and transcriber.engine.idle)
    until(lambda: not client.app.state.jobs.worker.running())
    after = client.get(f"{JOBS}/{job}").json()
    assert after["state"] == "cancelled" and after["progress"]["done_s"] == 0
    assert client.get(f"{JOBS}/{job}/result").status_code == 404
    assert client.post(f"{JOBS}/{job}/cancel").json() == after
    again = client.post(f"{JOBS}/{job}/retry")
    assert again.status_code == 202 and ended(client, job)["state"] == "succeeded"


def test_a_job_that_is_being_cut_can_be_cancelled(client, monkeypatch) -> None:
    """Hours of silence are read in one go, before there is a window to cancel."""
    begun, go, blocks = threading.Event(), threading.Event(), []

    def watched(read, *args, **kwargs) -> None:
        for block in read:
            blocks.append(block)
            begun.set()
            assert go.wait(30)

    monkeypatch.setattr("forescribe.asr.segment.cut_plan.plan_of", watched)
    job = submit(client, silence(300)).json()["id"]
    assert begun.wait(30)
    assert client.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"
    go.set()
    until(lambda: not client.app.state.jobs.worker.running())
    assert len(blocks) == 1
    assert client.get(f"{JOBS}/{job}").json()["state"] == "cancelled"


def test_a_queued_job_can_be_cancelled(tmp_path, transcriber, decoders, held) -> None:
    with application(tmp_path, transcriber, decoders, job_concurrency=1) as client:
        ready(client)
        first, second = (submit(client, sound(2, seed)).json()["id"] for seed in (1, 2))
        assert client.post(f"{JOBS}/{second}/cancel").json()["state"] == "cancelled"
        held.set()
        assert ended(client, first)["state"] == "succeeded"
        assert client.get(f"{JOBS}/{second}").json()["started_at"] is None


@pytest.mark.parametrize("moment", ["running", "ended"])
def test_a_deleted_job_leaves_no_trace(
    tmp_path, client, held, transcriber, moment, monkeypatch
) -> None:
    """Prompt, file name and options are searched for in all bytes on disk."""
    job = submit(client, memo(8), prompt="MARKERPROMPT").json()["id"]
    if moment == "running":
        until(lambda: transcriber.engine.free < 4)
        assert b"MARKERPROMPT" in files(tmp_path)
    else:
        held.set()
        ended(client, job)
        assert b"MARKERPROMPT" in files(tmp_path) and b"talk.wav" in files(tmp_path)
    assert client.delete(f"{JOBS}/{job}").status_code == 204
    held.set()
    until(lambda: not client.app.state.jobs.worker.running())
    left = files(tmp_path)
    found = [word for word in (b"MARKERPROMPT", b"talk.wav", b"random") if word in left]
    assert found == []  # an id alone may be: it says nothing
    assert client.app.state.jobs.store.files.jobs() == set()
    assert client.get(f"{JOBS}/{job}").status_code == 404
    assert client.delete(f"{JOBS}/{job}").status_code == 404


def test_a_run_that_was_replaced_leaves_no_file(tmp_path) -> None:
    store = Store.open(tmp_path)
    with store.transaction() as tx:
        store.jobs.insert(tx, Job(id="job", owner="", total_s=60.0))
    assert store.jobs.claim("here", beside=()) is not None
    walk, stored = Walk(Mock(), Mock(), store, Mock()), tmp_path / "files" / "job"

    def save(number: int, process: str) -> None:
        claim = Claim("job", number, process)
        walk.save(Run(store.jobs.get("job"), claim, Mock(), Mock()), "plan", {})

    for claim in ((2, "here"), (1, "elsewhere")):
        with pytest.raises(RunReplaced):
            save(*claim)
    assert not stored.exists()
    save(1, "here")
    assert [path.name for path in stored.iterdir()] == [store.jobs.get("job").files["plan"]]
    store.close()


def test_a_job_that_waits_for_the_model_ends_with_the_process() -> None:
    serving, stopping = Mock(), threading.Event()

    def want() -> None:
        assert not stopping.is_set()
        stopping.set()

    serving.life.state, serving.idle.want = "loading", want
    with pytest.raises(Stopping):
        Run(Mock(), Mock(), serving, stopping).session()


def test_a_job_that_is_abandoned_while_it_is_queued_waits_for_nothing(monkeypatch) -> None:
    walk, run = Walk(Mock(), Mock(), Mock(), Mock()), Run(Mock(), Mock(), Mock(), threading.Event())
    for name in ("samples", "enter"):
        monkeypatch.setattr(walk, name, Mock())
    monkeypatch.setattr(walk, "submit", lambda run: run.abandon())
    with pytest.raises(RunReplaced):
        walk.groups(run)


def test_speakers_are_found_anew_on_the_same_words(client, monkeypatch, transcriber) -> None:
    job = submit(client, memo(8)).json()["id"]
    ended(client, job)
    plain = client.get(f"{JOBS}/{job}/result?response_format=transcript").json()
    refused = client.get(f"{JOBS}/{job}/result?response_format=rttm")
    assert refused.status_code == 409
    assert f"; POST /v1/jobs/{job}/diarize adds them" in refused.json()["error"]["message"]
    monkeypatch.setattr(transcriber.engine, "submit", None)  # nothing is decoded again
    for count in (1, 2):
        answer = client.post(f"{JOBS}/{job}/diarize", json={"num_speakers": count})
        assert answer.status_code == 202
        over = ended(client, job)
        assert over["state"] == "succeeded" and over["options"]["num_speakers"] == count
        told = client.get(f"{JOBS}/{job}/result?response_format=transcript").json()
        assert told["text"] == plain["text"] and told["diarized"]
        assert len({turn["speaker"] for turn in told["turns"]}) == count
        words = [w["word"] for s in told["segments"] for w in s["words"]]
        assert words == [w["word"] for s in plain["segments"] for w in s["words"]]
    store = client.app.state.jobs.store  # the results before are gone
    stored = (store.files.root / job).iterdir()
    assert {path.name for path in stored} == set(store.jobs.get(job).files.values())
    assert client.post(f"{JOBS}/{job}/diarize?num_speakers=0").status_code == 400
    for sent in ({"params": {"speakers": 2}}, {"json": {"speakers": 2}}, {"data": {"speakers": 2}}):
        answer = client.post(f"{JOBS}/{job}/diarize", **sent)
        assert answer.status_code == 400 and "unknown field 'speakers'" in answer.text


def test_a_diarizer_that_fails_leaves_the_transcript(client, monkeypatch) -> None:
    from forescribe.asr.errors import UsageError

    job = submit(client, memo(4)).json()["id"]
    ended(client, job)

    def fail(*_):
        raise UsageError("no such voice")

    monkeypatch.setattr(client.app.state.serving.speakers, "diarize", fail)
    client.post(f"{JOBS}/{job}/diarize")
    over = ended(client, job)
    assert over["state"] == "succeeded" and over["error"]["code"] == "invalid_value"
    assert client.get(f"{JOBS}/{job}/result").status_code == 200


def test_a_fault_that_passes_is_tried_again_and_one_that_stays_is_told(
    client, transcriber, monkeypatch
) -> None:
    step, faults = transcriber.engine.step, [RuntimeError("secret")]

    def faulty():
        if faults:
            raise faults.pop()
        return step()

    monkeypatch.setattr(transcriber.engine, "step", faulty)
    job = submit(client, memo(3)).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    monkeypatch.setattr("forescribe.api.jobs.walk.PAUSES_S", (0.01, 0.01))
    faults += [RuntimeError("secret")] * 10_000
    other = submit(client, sound(3)).json()["id"]
    over = ended(client, other)
    assert over["state"] == "failed" and over["error"]["code"] == "internal_error"
    assert "secret" not in str(over)
    counted = 'forescribe_jobs_ended_total{state="failed"} 1.0'
    until(lambda: counted in client.get("/metrics").text)
    faults.clear()
    assert client.post(f"{JOBS}/{other}/retry").status_code == 202
    assert ended(client, other)["state"] == "succeeded"


def test_a_fault_that_lasts_no_longer_than_the_pauses_fails_no_job(
    client, monkeypatch, caplog
) -> None:
    plan_of, faults = cut_plan.plan_of, []

    def faulty(*args, **kwargs):
        if not faults or time.monotonic() < faults[0] + 0.4:
            faults.append(time.monotonic())
            raise RuntimeError("the device is busy")
        return plan_of(*args, **kwargs)

    monkeypatch.setattr("forescribe.api.jobs.walk.PAUSES_S", (0.5,))
    monkeypatch.setattr(cut_plan, "plan_of", faulty)
    with caplog.at_level("INFO", "forescribe.api"):
        job = submit(client, memo(1)).json()["id"]
        assert ended(client, job)["state"] == "succeeded" and len(faults) == 1
    (told,) = [each for each in caplog.messages if "job_fault" in each]
    assert json.loads(told).items() >= {"in": "plan", "error": "RuntimeError"}.items()


def test_retention_forgets_audio_first_and_results_later(client, tmp_path) -> None:
    job = submit(client, memo(2)).json()["id"]
    ended(client, job)
    jobs, now = client.app.state.jobs, client.app.state.jobs.store.clock()
    jobs.store.clock = lambda: now + 3600  # an hour on: nothing is due
    jobs.erase_expired()
    assert client.get(f"{JOBS}/{job}/audio").status_code == 200
    jobs.store.clock = lambda: now + 25 * 3600
    jobs.erase_expired()
    assert client.get(f"{JOBS}/{job}/audio").status_code == 404
    assert client.get(f"{JOBS}/{job}/result").status_code == 200
    assert client.post(f"{JOBS}/{job}/diarize").status_code == 404
    jobs.store.clock = lambda: now + 31 * 24 * 3600
    jobs.erase_expired()
    assert client.get(f"{JOBS}/{job}").status_code == 404
    assert client.app.state.jobs.store.files.jobs() == set()


def test_a_full_queue_and_a_full_disk_are_told_before_the_body(
    tmp_path, transcriber, decoders, held
) -> None:
    with application(tmp_path, transcriber, decoders, max_queued_jobs_s=3) as client:
        ready(client)
        job = submit(client, sound(4)).json()["id"]
        refused = submit(client, sound(1))
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        held.set()
        ended(client, job)
    with application(tmp_path / "full", transcriber, decoders, min_free_bytes=1 << 60) as client:
        ready(client)
        refused = submit(client, sound(1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "storage_full")
        assert client.app.state.jobs.store.files.jobs() == set()


@pytest.mark.parametrize(("away", "status"), [(True, 503), (False, 500)])
def test_a_database_that_is_away_is_worth_another_try(client, monkeypatch, away, status) -> None:
    store = client.app.state.jobs.store
    fault = OperationalError("select", {}, Exception("server closed the connection"))
    monkeypatch.setattr(store.database, "available", lambda: not away)
    monkeypatch.setattr(store.jobs, "page", Mock(side_effect=fault))
    answer = client.get(JOBS)
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == away
    assert ("database" in answer.json()["error"]["message"]) == away


def test_what_is_doubtful_in_a_transcript_is_told_by_the_job_as_well(client, monkeypatch) -> None:
    """By the job, its last event and its result; a diarization that has no doubts takes none away."""
    from dataclasses import replace

    from forescribe.api.speech.decoding import Decoding
    from forescribe.asr.formats.transcript_parts import Notice

    outcome = Decoding.outcome
    doubt = Notice("doubtful_window", "0.0 s to 3.0 s: no try could save it")

    def doubtful(self):
        found = outcome(self)
        return replace(found, transcript=replace(found.transcript, warnings=(doubt,)))

    monkeypatch.setattr(Decoding, "outcome", doubtful)
    expected = [{"code": doubt.code, "message": doubt.message}]
    job = submit(client, memo(3)).json()
    assert job["warnings"] == []
    assert ended(client, job["id"])["warnings"] == expected
    kind, _, last = events(client, job["id"])[-1]
    assert kind == "done" and last["warnings"] == expected
    told = client.get(f"{JOBS}/{job['id']}/result?response_format=verbose_json").json()
    assert told["warnings"] == expected
    client.post(f"{JOBS}/{job['id']}/diarize")
    assert ended(client, job["id"])["warnings"] == expected
    assert client.get(JOBS).json()["data"][0]["warnings"] == expected


def test_without_jobs_their_routes_are_not_there(service) -> None:
    answer = service().get(JOBS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_metrics_tell_of_jobs_without_names(client) -> None:
    job = submit(client, memo(2)).json()["id"]
    ended(client, job)
    text = client.get("/metrics").text
    assert 'forescribe_jobs_ended_total{state="succeeded"} 1.0' in text
    assert "forescribe_audio_seconds_total 2.0" in text
    assert "forescribe_jobs_open 0.0" in text and job not in text and "talk" not in text
