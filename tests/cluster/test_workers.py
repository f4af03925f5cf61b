"""Workers without Ray: one engine for all recordings, and failures that stay with their own."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from forescribe.asr.decode.options import Options
from forescribe.asr.errors import AudioError, CapacityError, ForescribeError, UsageError
from forescribe.asr.storage.locations import Source
from forescribe.cluster import workers
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.workers import Slot, TranscribeRows, Worker, cards_for, portable
from forescribe.speculative import device
from tests.asr.batch.remote.objects import CopyTypist, put_calls
from tests.asr.storage.faults import memory
from tests.asr.typists import Outcome, text_of, write_wav


@pytest.fixture
def calls(tmp_path: Path) -> list[Source]:
    paths = [write_wav(tmp_path / f"{n}.wav", 0.1, n) for n in range(5)]
    return [Source(str(path)) for path in paths]


def order(typist: CopyTypist, tmp_path: Path) -> WorkOrder:
    return WorkOrder(
        lambda: typist,
        Options(),
        batch=4,
        version=version("forescribe"),
        target="tiny.en",
        network=False,
        spool=str(tmp_path / "spool"),
    )


def transcribed(worker: Worker, sources: list[Source]) -> list[Outcome]:
    async def all_of_them() -> list[Outcome]:
        return await asyncio.gather(*map(worker.transcribe, sources))

    return asyncio.run(all_of_them())


def test_outcomes_are_those_of_their_recordings(calls, tmp_path) -> None:
    typist = CopyTypist()
    found = transcribed(Worker(order(typist, tmp_path)), [*calls, calls[0]])
    assert [outcome.name for outcome in found] == [s.path for s in [*calls, calls[0]]]
    assert [outcome.transcript.text.strip() for outcome in found[:5]] == [
        text_of(source.path) for source in calls
    ]
    assert all(outcome.content for outcome in found)


def test_recordings_in_a_store_are_fetched_and_their_copies_removed(tmp_path) -> None:
    put_calls(folder := memory() / "calls", 2)
    places = [folder / "00.wav", folder / "01.wav", folder / "none.wav"]
    sources = [Source(place.identity, location=place) for place in places]
    found = transcribed(Worker(order(CopyTypist(), tmp_path)), sources)
    assert [o.error and o.error.code for o in found] == [None, None, "missing_file"]
    assert found[0].entry is not None and found[0].entry.etag
    assert not list(tmp_path.glob("spool/*/*.wav"))


def test_out_of_memory_halves_the_batch_once(calls, tmp_path) -> None:
    class Crowded(CopyTypist):
        fits = 2

        def _typed(self, source):
            if self.batch > self.fits:
                raise MemoryError
            return super()._typed(source)

    typist = Crowded()
    found = transcribed(Worker(order(typist, tmp_path)), calls)
    assert typist.sizes == [4, 2] and all(outcome.transcript for outcome in found)
    typist = Crowded()
    typist.fits = 1
    found = transcribed(Worker(order(typist, tmp_path)), calls)
    assert typist.sizes == [4, 2]
    assert {outcome.error.code for outcome in found} == {"overloaded"}


def test_a_bad_recording_harms_no_other(calls, tmp_path) -> None:
    class Picky(CopyTypist):
        def _typed(self, source):
            if str(source) == calls[2].path:
                return Outcome(source, error=AudioError(f"{source}: no sound"))
            return super()._typed(source)

    found = transcribed(Worker(order(Picky(), tmp_path)), calls)
    assert [outcome.error is None for outcome in found] == [True, True, False, True, True]


def test_what_every_recording_would_fail_with_is_raised(calls, tmp_path) -> None:
    class Deaf(CopyTypist):
        def transcribe(self, sources, options=None, hook=None):
            raise UsageError("this model knows no Welsh")
            yield

    worker = Worker(order(Deaf(), tmp_path))
    for _ in range(2):
        with pytest.raises(UsageError, match="no Welsh"):
            transcribed(worker, calls[:1])
    refused = Worker(replace(order(CopyTypist(), tmp_path), version="0.0.1"))
    with pytest.raises(UsageError, match="this command is 0.0.1"):
        transcribed(refused, calls[:1])


class RayError(Exception):
    pass


class ActorDied(RayError):
    pass


class FakeRay:
    """Ray with an actor that types, and dies before its second answer, `deaths` times."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=ActorDied)

    def __init__(self, deaths: int) -> None:
        self.deaths, self.given = deaths, []
        self.next = SimpleNamespace(remote=lambda: "call")

    def nodes(self) -> list:
        return []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1}

    def remote(self, **options):
        def begun(order, sources, slot):
            self.given.append([source.path for source in sources])
            self._left = [Outcome(source.path, None) for source in sources]
            return self

        return lambda actor: SimpleNamespace(remote=begun)

    def wait(self, calls, timeout):
        return calls, []

    def get(self, call):
        if len(self._left) < len(self.given[-1]) and self.deaths:
            self.deaths -= 1
            raise ActorDied("The actor died.\n\nSet RAY_memory_usage_threshold to ...")
        return self._left.pop(0) if self._left else None


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_the_process_that_hands_out_recordings_may_die_once(
    calls, tmp_path, monkeypatch, deaths
) -> None:
    fake, told, found = FakeRay(deaths), [], []
    monkeypatch.setattr(workers, "connected", lambda *_, **__: nullcontext(fake))
    paths = [source.path for source in calls]
    run = workers.ClusterTranscriber(
        "auto", order(CopyTypist(), tmp_path), calls, status=told.append
    ).transcribe(paths)
    if deaths == 2:
        with pytest.raises(CapacityError, match="actor died.*the same command goes on") as caught:
            found.extend(outcome.name for outcome in run)
        assert "RAY_memory" not in str(caught.value)
        assert fake.given == [paths, paths[1:]] and found == paths[:2]
        return
    found = [outcome.name for outcome in run]
    assert found == paths and fake.given == [paths, paths[1:]][: deaths + 1]
    assert sum("starting it again" in line for line in told) == deaths


def test_rows_keep_their_columns_and_get_those_of_transcripts(calls, tmp_path) -> None:
    operator = TranscribeRows(order(CopyTypist(), tmp_path), "path")
    rows = [{"id": 1, "path": calls[0].path}, {"id": 2, "path": None}]
    good, bad = (asyncio.run(operator(row)) for row in rows)
    assert good["id"] == 1 and good["code"] is None
    assert json.loads(good["transcript"])["segments"][0]["text"] == f" {text_of(calls[0].path)}"
    assert bad["id"] == 2 and bad["code"] == "invalid_value" and bad["text"] is None
    assert good.keys() == bad.keys()


@pytest.mark.parametrize(
    ("resources", "given", "expected"),
    [
        ({"CPU": 16, "GPU": 4}, {}, Slot("GPU", 1, 4)),
        ({"CPU": 16, "HPU": 8}, {}, Slot("HPU", 1, 8)),
        ({"CPU": 16}, {}, Slot("CPU", 4, 4)),
        ({"CPU": 16, "GPU": 4}, {"device": "cpu", "workers": 2}, Slot("CPU", 8, 2)),
        ({"CPU": 16}, {"threads": 2}, Slot("CPU", 2, 8)),
        ({"CPU": 2}, {}, Slot("CPU", 2, 1)),
        ({"CPU": 16}, {"device": "cuda", "workers": 2}, Slot("GPU", 1, 2)),
    ],
)
def test_workers_fill_the_cluster(resources, given, expected) -> None:
    assert Slot.planned(resources, min(8, resources["CPU"]), **given) == expected
    assert ("num_gpus" in expected.options) is (expected.kind == "GPU")


@pytest.mark.parametrize(
    ("kind", "count", "workers", "found"),
    [("cuda", 8, 8, 8), ("cuda", 8, 3, 8), ("hpu", 8, 8, 0), ("cpu", 1, 4, 0)],
)
def test_workers_of_one_machine_have_a_card_each(monkeypatch, kind, count, workers, found) -> None:
    monkeypatch.setattr(device, "available", lambda name: name in (kind, "cpu"))
    monkeypatch.setattr(device, "device_count", lambda name: count)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(4)))
    assert cards_for("auto", workers) == found
    what = {"cuda": "cuda, which are 8", "hpu": "hpu, which are 8", "cpu": "cores, which are 4"}[
        kind
    ]
    with pytest.raises(UsageError, match=f"--workers 9: each worker needs one .*{what}"):
        cards_for(kind, 9)


def test_a_device_that_the_cluster_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="the cluster has no GPU"):
        Slot.planned({"CPU": 16}, 8, device="cuda")
    with pytest.raises(UsageError, match="on a cluster Ray chooses the devices"):
        Slot.planned({"GPU": 2, "CPU": 16}, 8, device="cuda:1")


def test_an_error_that_is_sent_keeps_its_code_or_its_text() -> None:
    ours = AudioError("too short", code="audio_too_long")
    assert portable(ours) is ours

    class Local(ForescribeError): ...

    assert (
        str(portable(Local("of a class that nobody else knows")))
        == "of a class that nobody else knows"
    )
    assert "ZeroDivisionError: by nothing" in str(portable(ZeroDivisionError("by nothing")))
