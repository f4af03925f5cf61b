"""Two requests meet at one job, and the second of everything: each pair waits for the other in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from forescribe.api.errors import checked
from forescribe.api.jobs.corrections import Corrections
from tests.api.conftest import memo, sound, until
from tests.api.jobs.application import JOBS, application, ended, events, ready, submit
from tests.api.jobs.test_corrections import changed, etag, put

ENDED = {"succeeded", "failed", "cancelled"}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch) -> None:
    monkeypatch.setattr("forescribe.asr.segment.cut_plan.GROUP_SIZE", 1)


def meet(client, *acts: Callable[[], object]) -> list:
    """The answers of requests each of which has seen the job before any of them changes it."""
    barrier, waiting = threading.Barrier(len(acts)), threading.local()
    operations = client.app.state.jobs.operations
    get = type(operations).get

    def met(id: str, owner: str):
        job = get(operations, id, owner)
        if threading.current_thread() is not threading.main_thread():
            if not hasattr(waiting, "over"):
                waiting.over = True
                barrier.wait(30)
        return job

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(operations, "get", met)
        with ThreadPoolExecutor(len(acts)) as pool:
            return [answer.result(60) for answer in [pool.submit(act) for act in acts]]


@pytest.fixture
def jobs(client):
    """What the routes call, from threads of the test."""
    return client.app.state.jobs.operations


def outcome(act: Callable[[], object]) -> Callable[[], str]:
    """`done`, or the code of the error."""
    from forescribe.api.errors import ApiError

    def run() -> str:
        try:
            act()
        except ApiError as error:
            return error.code
        return "done"

    return run


@pytest.fixture
def cancelled(client, held) -> str:
    """A job that was cancelled while its first group was decoded."""
    job = submit(client, memo(3)).json()["id"]
    until(lambda: client.get(f"{JOBS}/{job}").json()["state"] == "running")
    assert client.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"
    return job


@pytest.fixture
def done(client) -> str:
    job = submit(client, memo(8)).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    return job


def stored(client) -> set[str]:
    return client.app.state.jobs.store.files.jobs()


def test_of_two_retries_one_is_refused(client, jobs, cancelled, held) -> None:
    """Both saw a cancelled job; one was answered with 500."""
    retry = outcome(lambda: jobs.retry(cancelled, ""))
    assert sorted(meet(client, retry, retry)) == ["conflict", "done"]
    held.set()
    assert ended(client, cancelled)["state"] == "succeeded"
    states = [data["state"] for kind, _, data in events(client, cancelled) if kind == "state"]
    assert states.count("queued") == 2 and states[-1] == "succeeded"


def test_the_second_retry_goes_on_after_the_second_failure(client, held, transcriber) -> None:
    job = submit(client, sound(70)).json()["id"]  # three windows
    for retried in range(2):
        until(lambda: not transcriber.engine.idle)
        assert client.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"
        assert client.post(f"{JOBS}/{job}/retry").status_code == 202, retried
    held.set()
    assert ended(client, job)["state"] == "succeeded"
    assert client.app.state.jobs.store.jobs.get(job).run == 3


def test_of_two_diarizations_one_is_refused(client, jobs, done) -> None:
    acts = [outcome(lambda n=n: jobs.diarize(done, "", n)) for n in (1, 2)]
    answers = meet(client, *acts)
    assert sorted(answers) == ["conflict", "done"]
    over = ended(client, done)
    assert over["options"]["num_speakers"] == answers.index("done") + 1


def test_a_cancellation_and_a_retry_leave_one_run_that_ends(client, jobs, cancelled, held) -> None:
    answers = meet(
        client,
        outcome(lambda: jobs.retry(cancelled, "")),
        outcome(lambda: jobs.cancel(cancelled, "")),
    )
    assert answers == ["done", "done"]
    held.set()
    assert ended(client, cancelled)["state"] in ("cancelled", "succeeded")
    until(lambda: not client.app.state.jobs.worker.running())


@pytest.mark.parametrize("other", ["retry", "cancel", "delete", "rename", "diarize"])
def test_a_deletion_leaves_nothing_whatever_comes_beside_it(
    client, jobs, cancelled, held, other
) -> None:
    acts = {
        "retry": lambda: jobs.retry(cancelled, ""),
        "cancel": lambda: jobs.cancel(cancelled, ""),
        "delete": lambda: jobs.delete(cancelled, ""),
        "rename": lambda: jobs.rename(cancelled, "", "another"),
        "diarize": lambda: jobs.diarize(cancelled, "", 2),
    }
    delete = outcome(acts["delete"])
    answers = meet(client, delete, outcome(acts[other]))
    assert answers[0] in ("done", "job_not_found") and "done" in answers
    assert answers[1] in ("done", "conflict", "job_not_found", "not_found")
    held.set()
    until(lambda: not client.app.state.jobs.worker.running())
    assert client.get(f"{JOBS}/{cancelled}").status_code == 404
    assert client.get(JOBS).json()["data"] == [] and stored(client) == set()


def test_a_correction_and_new_speakers_do_not_both_happen(client, jobs, done) -> None:
    at = f"{JOBS}/{done}"
    body, tag = changed(client, at, "new"), etag(client, at)
    corrected = client.app.state.jobs.corrected
    answers = meet(
        client,
        outcome(lambda: corrected.put(done, "", checked(Corrections, body), tag)),
        outcome(lambda: jobs.diarize(done, "", 1)),
    )
    assert answers in (["done", "conflict"], ["conflict", "done"], ["version_conflict", "done"])
    assert ended(client, done)["state"] == "succeeded"
    assert client.get(f"{at}/corrections").json()["version"] == (answers[0] == "done")


def test_a_correction_of_a_job_that_is_deleted_leaves_nothing(client, jobs, done) -> None:
    at = f"{JOBS}/{done}"
    body, tag = changed(client, at, "new"), etag(client, at)
    corrected = client.app.state.jobs.corrected
    answers = meet(
        client,
        outcome(lambda: corrected.put(done, "", checked(Corrections, body), tag)),
        outcome(lambda: jobs.delete(done, "")),
    )
    assert answers[0] in ("done", "job_not_found", "not_found") and answers[1] == "done"
    assert client.get(at).status_code == 404 and stored(client) == set()


def test_a_second_correction_follows_the_first_and_a_deleted_one_is_not_the_next(
    client, done
) -> None:
    """A version that was deleted has the number of the next one."""
    at = f"{JOBS}/{done}"
    first = put(client, at, changed(client, at, "first"))
    assert client.delete(f"{at}/corrections").status_code == 204
    second = put(client, at, changed(client, at, "second"))
    assert first.json()["version"] == second.json()["version"] == 1
    stale = put(client, at, changed(client, at, "third"), first.headers["etag"])
    assert stale.status_code == 412
    third = put(client, at, changed(client, at, "third"), second.headers["etag"])
    assert third.json()["version"] == 2


def test_a_reader_whose_correction_is_deleted_meanwhile_sees_the_result(
    client, done, monkeypatch
) -> None:
    """Between its look at the row and its look at the file."""
    at = f"{JOBS}/{done}"
    plain = client.get(f"{at}/result?response_format=text").text
    assert put(client, at, changed(client, at, "new")).status_code == 200
    store, corrected = client.app.state.jobs.store, client.app.state.jobs.corrected
    read = store.read

    def late(job, role: str):
        if role.startswith("corrections"):
            corrected.delete(done, "")
        return read(job, role)

    monkeypatch.setattr(store, "read", late)
    assert client.get(f"{at}/result?response_format=text").text == plain


@pytest.mark.parametrize("act", ["cancel", "delete"])
def test_a_job_that_ends_while_it_is_cancelled_ends_once(client, held, monkeypatch, act) -> None:
    """The call comes while the run is about to record its end."""
    walk, come, go = client.app.state.jobs.worker.walk, threading.Event(), threading.Event()
    finish = walk.finish

    def late(run) -> None:
        come.set()
        assert go.wait(30)
        finish(run)

    monkeypatch.setattr(walk, "finish", late)
    job = submit(client, memo(2)).json()["id"]
    held.set()
    assert come.wait(60)
    jobs = client.app.state.jobs.operations
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(getattr(jobs, act), job, "")
        until(
            lambda: (
                act == "delete"
                or called.done()
                or client.get(f"{JOBS}/{job}").json()["finished_at"]
            )
        )
        go.set()
        called.result(60)
    until(lambda: not client.app.state.jobs.worker.running())
    if act == "delete":
        assert client.get(f"{JOBS}/{job}").status_code == 404 and stored(client) == set()
    else:
        assert client.get(f"{JOBS}/{job}").json()["state"] == "cancelled"
        states = [data["state"] for kind, _, data in events(client, job) if kind == "state"]
        assert states == ["queued", "running", "cancelled"]


def test_a_job_that_is_claimed_while_it_is_cancelled_is_not_begun(
    tmp_path, transcriber, decoders, held, monkeypatch
) -> None:
    """It is cancelled between its claim and the first write of its run."""
    with application(tmp_path, transcriber, decoders, job_concurrency=1) as client:
        ready(client)
        worker = client.app.state.jobs.worker
        walk, come, go = worker.walk, threading.Event(), threading.Event()

        def late(run) -> None:
            come.set()
            assert go.wait(30)
            walk(run)

        monkeypatch.setattr(worker, "walk", late)
        job = submit(client, memo(2)).json()["id"]
        assert come.wait(60)
        assert client.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"
        before = client.app.state.jobs.store.jobs.get(job)
        go.set()
        held.set()
        until(lambda: not worker.running())
        assert client.app.state.jobs.store.jobs.get(job) == before
