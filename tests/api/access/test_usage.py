"""Usage and quotas of keys: what is counted, once; and what is refused."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, date, datetime

import pytest
from sqlalchemy.exc import OperationalError

from forescribe.api.access.keys import QUOTAS, Rights, digest, new_key
from forescribe.api.access.usage import Amount, Usage, until
from forescribe.api.errors import ApiError
from forescribe.api.jobs.database import Database
from forescribe.api.process.server import _usage
from forescribe.api.settings import Settings
from forescribe.asr.errors import UsageError
from tests.api.batches.calls import begin, jsonl, line, lines_of, upload
from tests.api.batches.calls import ended as batch_ended
from tests.api.conftest import TRANSCRIBE, keyed, sound
from tests.api.jobs.application import FORM, JOBS, application, database_of, ready

KEY, OTHER = new_key(), new_key()
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    made = Database.open(database_of(request.param) or f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


def counter(database, clock=None, **quotas) -> Usage:
    rights = {"team": Rights(hashes=(digest(KEY),), **quotas), "free": Rights(hashes=("0" * 64,))}
    usage = Usage(database, rights.get, clock or Clock())
    usage.create()
    return usage


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    assert caught.value.code == "insufficient_quota" and caught.value.status == 429
    return caught.value


# -- counting --------------------------------------------------------------------------------------


def test_usage_is_counted_per_key_and_day(database) -> None:
    clock = Clock()
    usage = counter(database, clock)
    usage.spend("team", requests=1, audio_s=2.5)
    usage.spend("free", requests=1, audio_s=100)
    usage.spend("", requests=1)  # nobody's
    clock.now += DAY_S
    usage.spend("team", requests=2, audio_s=1.25)
    usage.later("team", tokens=7)
    usage.close()
    again = counter(database, clock)  # after a restart
    assert again.days("team", date(2026, 11, 1)) == {
        date(2026, 11, 23): Amount(1, 2.5, 0),
        date(2026, 11, 24): Amount(2, 1.25, 7),
    }
    assert again.days("", date(2026, 11, 1)) == {}
    again.refund("team", requests=1, audio_s=1.25)
    assert again.days("team", date(2026, 11, 24))[date(2026, 11, 24)] == Amount(1, 0.0, 7)


def test_processes_count_together_and_never_exceed_a_quota(database) -> None:
    """Ten threads with their own connections, as replicas have."""
    counters = [counter(database, requests_per_day=35) for _ in range(10)]
    accepted, barrier = [], threading.Barrier(10)

    def work(usage: Usage) -> None:
        barrier.wait()
        for _ in range(5):
            try:
                usage.spend("team", requests=1, audio_s=0.5)
                accepted.append(1)
            except ApiError as error:
                assert error.code == "insufficient_quota"

    threads = [threading.Thread(target=work, args=(usage,)) for usage in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accepted) == 35
    total = counters[0].days("team", date(2026, 11, 23))[date(2026, 11, 23)]
    assert total == Amount(35, 17.5, 0)


def test_a_quota_of_a_day_and_of_a_month(database) -> None:
    clock = Clock()
    usage = counter(database, clock, audio_s_per_day=100, audio_s_per_month=150)
    usage.check("team")
    usage.spend("team", requests=1, audio_s=90)
    error = refused(lambda: usage.spend("team", requests=1, audio_s=20))
    assert "90 of 100 seconds of audio this day" in error.message
    assert "needs 20 more" in error.message
    assert error.retry_after == 12 * 3600 + 1 and error.headers()["x-should-retry"] == "false"
    assert error.body()["error"]["type"] == "insufficient_quota"
    usage.check("team")  # ten seconds are left
    usage.spend("team", audio_s=10)
    refused(lambda: usage.check("team"))
    usage.check_tokens("team")  # of another unit
    clock.now += DAY_S
    usage.spend("team", audio_s=50)
    error = refused(lambda: usage.check("team"))
    assert "this month" in error.message
    assert error.retry_after == int(until(date(2026, 11, 24), "month").timestamp() - clock.now) + 1
    clock.now = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    usage.spend("team", audio_s=100)


def test_tokens_are_refused_once_they_are_used_up(database) -> None:
    usage = counter(database, tokens_per_month=10)
    usage.check_tokens("team")
    usage.later("team", tokens=12)
    usage._late.shutdown()
    assert "12 of 10 tokens" in refused(lambda: usage.check_tokens("team")).message
    usage.check("team")


def test_what_is_rolled_back_is_not_counted(database) -> None:
    usage = counter(database)
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        usage.spend_in(tx, "team", requests=1)
        raise ZeroDivisionError
    assert usage.days("team", date(2026, 11, 1)) == {}


def test_the_first_worker_need_not_have_made_the_folder(tmp_path) -> None:
    usage = _usage(Settings(data_dir=tmp_path / "of" / "jobs"))
    assert usage is not None and usage.days("team", date(2026, 11, 1)) == {}
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="data_dir"):
        _usage(Settings(data_dir=tmp_path / "file" / "jobs"))


def test_without_a_database_a_key_with_a_quota_is_refused_and_others_are_counted_later(
    tmp_path, monkeypatch
) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    usage = counter(database, requests_per_day=5)
    away = {"is": True}
    transaction = database.transaction

    @contextmanager
    def cut_off():
        if away["is"]:
            raise OperationalError("select", {}, Exception("gone"), connection_invalidated=True)
        with transaction() as tx:
            yield tx

    monkeypatch.setattr(database, "transaction", cut_off)
    with pytest.raises(OperationalError):
        usage.spend("team", requests=1)
    usage.spend("free", requests=1, audio_s=3)
    usage.spend("free", requests=1, audio_s=4)
    away["is"] = False
    usage.spend("free", requests=1)
    assert usage.days("free", date(2026, 11, 1)) == {date(2026, 11, 23): Amount(3, 7.0, 0)}
    usage.close()


def test_what_waits_for_the_database_survives_refusals_and_further_failures(
    database, monkeypatch
) -> None:
    usage = counter(database, requests_per_day=1, audio_s_per_day=100)
    increment = usage._increment

    def gone(*_: object) -> None:
        raise OperationalError("insert", {}, Exception("gone"), connection_invalidated=True)

    monkeypatch.setattr(usage, "_increment", gone)
    usage.refund("team", audio_s=-5)
    usage.refund("team", audio_s=-6)
    monkeypatch.setattr(usage, "_increment", increment)
    refused(lambda: usage.spend("team", requests=2))
    usage.spend("team", requests=1)
    assert usage.days("team", date(2026, 11, 1)) == {date(2026, 11, 23): Amount(1, 11.0, 0)}
    usage.close()


def test_a_quota_needs_the_database_of_jobs() -> None:
    for quota in QUOTAS:
        with pytest.raises(ValueError, match="jobs = true"):
            Settings(jobs=False, api_keys={"team": {"hash": digest(KEY), quota: 5}})


# -- routes ----------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path, transcriber, decoders):
    keys = {
        "team": {"hash": digest(KEY), "audio_s_per_month": 10, "audio_s_per_hour": 100},
        "other": digest(OTHER),
    }
    with application(tmp_path, transcriber, decoders, api_keys=keys) as client:
        yield ready(client)


def used(client, key: str = KEY) -> tuple[int, float]:
    told = client.get("/v1/usage", headers=keyed(key)).json()
    assert told["day"]["used"] == {k: v for k, v in told["days"][-1].items() if k != "day"}
    return told["month"]["used"]["requests"], told["month"]["used"]["audio_seconds"]


def post(client, seconds: float, key: str = KEY, path: str = TRANSCRIBE):
    files, data = {"file": sound(seconds)}, {"model": "random", **FORM}
    return client.post(path, files=files, data=data, headers=keyed(key))


def test_requests_and_jobs_are_counted_once_and_refused_beyond_the_quota(client) -> None:
    assert post(client, 4).status_code == 200
    job = client.post(
        JOBS,
        files={"file": sound(2)},
        data=FORM,
        headers={**keyed(KEY), "Idempotency-Key": "one"},
    )
    again = client.post(
        JOBS,
        files={"file": sound(2)},
        data=FORM,
        headers={**keyed(KEY), "Idempotency-Key": "one"},
    )
    assert job.status_code == again.status_code == 202 and job.json()["id"] == again.json()["id"]
    assert post(client, 1).status_code == 200 and used(client) == (3, 7.0)
    assert client.post(TRANSCRIBE, files={"file": b"no"}, headers=keyed(KEY)).status_code == 400
    for path in (TRANSCRIBE, JOBS):
        answer = post(client, 4, path=path)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "insufficient_quota"
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-ratelimit-remaining-audio-seconds"] == "93"  # nothing was used
    assert used(client) == (3, 7.0)
    blobs, references = (client.app.state.jobs.store.blobs, client.app.state.jobs.store.references)
    assert references.sweep() == 0 and blobs  # a refused job leaves nothing
    assert post(client, 3).status_code == 200 and used(client) == (4, 10.0)
    assert (
        post(client, 1).json()["error"]["code"] == "insufficient_quota"
    )  # before the body is read
    assert post(client, 1, OTHER).status_code == 200 and used(client, OTHER) == (1, 1.0)


def test_a_request_that_is_refused_at_the_end_costs_nothing(client, monkeypatch) -> None:
    def follow(task):
        task.release()
        raise ApiError("invalid_value", "the prompt is too long", param="prompt")

    monkeypatch.setattr(client.app.state.serving, "follow", follow)
    assert post(client, 3).status_code == 400
    assert used(client) == (0, 0.0)


def test_a_retried_job_is_not_counted_again(client, held) -> None:
    job = post(client, 2, path=JOBS).json()["id"]
    assert client.post(f"{JOBS}/{job}/cancel", headers=keyed(KEY)).json()["state"] == "cancelled"
    assert client.post(f"{JOBS}/{job}/retry", headers=keyed(KEY)).status_code == 202
    assert used(client) == (1, 2.0)


def test_lines_of_a_batch_are_counted_and_refused_one_by_one(client) -> None:
    headers = keyed(KEY)
    file = upload(client, sound(4), headers=headers).json()["id"]
    lines = [line(str(k), file=file) for k in range(4)]
    made = begin(client, jsonl(lines), headers=headers).json()["id"]
    batch = batch_ended(client, made, headers=headers)
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    rows = lines_of(client, batch["error_file_id"], headers=headers)
    assert {row["response"]["status_code"] for row in rows.values()} == {429}
    assert used(client) == (2, 8.0)


def test_usage_without_keys_is_no_route(tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders) as client:
        assert client.get("/v1/usage").status_code == 404
