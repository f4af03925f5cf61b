"""The operator of Ray Data without Ray: rows in, rows out, with a transcriber that is a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forescribe.asr.errors import AudioError, UsageError
from forescribe.asr.records.record_store import MAX_CRASHES
from forescribe.asr.records.sources import Source
from forescribe.cluster import operator as operators
from forescribe.cluster import worker as worker_models
from forescribe.cluster.operator import MAX_DEATHS, Marks, Transcribe, source_of
from forescribe.cluster.order import OPTIONS, order_of_options
from forescribe.cluster.worker import ClusterWorker
from forescribe.ray import Transcribe as Public

from .children import each, full
from .test_ray_worker import Script, order

Make = Callable[..., Transcribe]


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch):
    made: list[ClusterWorker] = []

    def make(script: Script, **options) -> Transcribe:
        def prepared(given) -> ClusterWorker:
            made.append(ClusterWorker(order(), script))
            return made[-1]

        monkeypatch.setattr(worker_models, "prepared_worker", prepared)
        return Transcribe(model="tiny.en", **options)

    yield make
    for worker in made:
        worker.close()


def rows(operator: Transcribe, *given: dict) -> list[dict]:
    async def all_rows() -> list[dict]:
        return await asyncio.wait_for(asyncio.gather(*map(operator, given)), 30)

    return asyncio.run(all_rows())


def test_a_row_keeps_its_columns_and_gets_a_transcript(operator: Make) -> None:
    (row,) = rows(operator(Script()), {"path": "a.wav", "call": 7})
    assert (row["path"], row["call"], row["language"], row["code"]) == ("a.wav", 7, "en", None)
    assert row["audio_s"] == 1.0
    assert json.loads(row["transcript"])["language"] == "en"


def test_errors_come_back_as_rows_with_the_same_columns(operator: Make) -> None:
    error = AudioError("b.wav: nothing in it", code="empty_file")
    good, bad, none, web = rows(
        operator(Script(**{"b.wav": error})),
        {"path": "a.wav"},
        {"path": "b.wav"},
        {"path": None},
        {"path": "ftp://host/a.wav"},
    )
    assert (bad["code"], bad["message"]) == ("empty_file", "b.wav: nothing in it")
    assert (none["code"], web["code"]) == ("invalid_value", "invalid_value")
    assert good.keys() == bad.keys() == none.keys() == web.keys()


def test_rows_are_in_work_at_the_same_time(operator: Make) -> None:
    script = Script()
    script.gate.clear()
    made = operator(script)

    async def run() -> list[dict]:
        calls = [asyncio.ensure_future(made({"path": f"{n}.wav"})) for n in range(6)]
        while sum(map(len, script.calls)) < 1:
            await asyncio.sleep(0.01)
        assert not any(call.done() for call in calls)
        script.gate.set()
        return await asyncio.wait_for(asyncio.gather(*calls), 30)

    assert [row["path"] for row in asyncio.run(run())] == [f"{n}.wav" for n in range(6)]


def test_the_same_path_may_come_twice(operator: Make) -> None:
    first, second = rows(operator(Script()), {"path": "a.wav", "n": 1}, {"path": "a.wav", "n": 2})
    assert (first["n"], second["n"]) == (1, 2)
    assert first["transcript"] and second["transcript"]


def test_what_every_row_would_fail_with_is_raised(operator: Make) -> None:
    made = operator(Script(**{"a.wav": UsageError("no such language")}))
    for _ in range(2):
        with pytest.raises(UsageError, match="no such language"):
            rows(made, {"path": "a.wav"})


def test_another_column_may_hold_the_path(operator: Make) -> None:
    (row,) = rows(operator(Script(), path_column="audio"), {"audio": "a.wav"})
    assert row["text"] == ""


def test_options_are_those_of_the_command_and_are_checked() -> None:
    made = order_of_options({"model": "tiny.en", "diarize": True, "num_speakers": 2, "gamma": "2"})
    assert made.models["gamma"] == 2
    assert made.speakers is not None and made.speakers.bounds.exactly == 2
    with pytest.raises(UsageError, match="output_dir: no option of an operator; known: batch_size"):
        order_of_options({"output_dir": "out"})
    with pytest.raises(UsageError, match="--long-form"):
        order_of_options({"long_form": "neither"})


def test_the_options_exist() -> None:
    from dataclasses import fields

    from forescribe.cli.transcribe_options import TranscribeOptions

    assert {field.name for field in fields(TranscribeOptions)} >= OPTIONS


def test_sources() -> None:
    assert source_of(Path("calls/a.mp3"), "path") == Source("calls/a.mp3")
    remote = source_of("s3://calls/a.mp3", "path")
    assert isinstance(remote, Source) and remote.location is not None
    assert isinstance(source_of(7, "path"), UsageError)


def test_the_public_name() -> None:
    assert Public is Transcribe


# -- rows over which actors have died -------------------------------------------------------------


def left_by_a_dead_actor(*paths: str) -> Marks:
    marks = Marks()
    for path in paths:
        marks.begin("", "the process before", path)
    return marks


def test_what_a_dead_actor_had_is_tried_in_a_child_where_the_poison_takes_nobody_with_it(
    operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "transcribe_each", each)
    marks, script = left_by_a_dead_actor("a.wav", "poison.wav", "b.wav"), Script()
    made = operator(script, marks=marks)
    given = ({"path": f"{name}.wav"} for name in ("a", "poison", "b", "new"))
    first, poison, second, new = rows(made, *given)
    assert (first["audio_s"], second["audio_s"]) == (2.0, 2.0)  # from children
    assert poison["code"] == "crashed_workers" and "poison.wav: 3 workers died" in poison["message"]
    assert new["audio_s"] == 1.0 and script.calls == [["new.wav"]]  # by the actor
    deaths = [marks.begin("", "later", f"{name}.wav") for name in ("a", "poison", "b", "new")]
    assert deaths == [1, MAX_CRASHES, 1, 0]


def test_where_no_second_model_fits_suspects_become_rows_that_say_so(
    operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "transcribe_each", full)
    made = operator(Script(), marks=left_by_a_dead_actor("a.wav", "b.wav"))
    for row in rows(made, {"path": "a.wav"}, {"path": "b.wav"}):
        assert row["code"] == "overloaded" and "no memory for a second model" in row["message"]


def test_a_row_that_no_child_dies_of_is_given_up_at_last(operator: Make) -> None:
    marks = Marks()
    for number in range(MAX_DEATHS + 1):
        marks.begin("", f"process {number}", "a.wav")
    (row,) = rows(operator(Script(), marks=marks), {"path": "a.wav"})
    assert row["code"] == "crashed_workers"


def test_only_what_had_begun_and_not_ended_is_charged_and_once() -> None:
    marks = Marks()
    for path in ("ended", "open"):
        assert marks.begin("actor", "first", path) == 0
    assert marks.begin("other", "its own", "beside") == 0
    marks.end("actor", "ended")
    assert marks.begin("actor", "second", "open") == 1
    assert marks.begin("actor", "second", "ended") == 0
    assert marks.begin("actor", "second", "open") == 1
    assert marks.begin("other", "its own", "beside") == 0
