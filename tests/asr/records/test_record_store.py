"""Records: one per recording, whoever writes it and whatever gets lost."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forescribe.asr.batch.manifest import Record
from forescribe.asr.errors import StorageError, UsageError
from forescribe.asr.records.record_store import MAX_CRASHES, RecordLedger, RecordStore
from forescribe.asr.storage.stores import open_store
from tests.asr.storage.faults import LAGS, LOST, OK, REPLY_LOST, faulty_store, memory

SETTINGS = "5e77"


def record(source: str, status: str = "succeeded", *, text: str = "a") -> Record:
    done = status == "succeeded"
    return Record(
        path=source,
        status=status,
        source=source,
        code=None if done else "invalid_audio",
        audio_s=12.5 if done else None,
        outputs=(f"{source}.json",) if done else (),
        fingerprint=f"sha256:{text}+{SETTINGS}" if done else None,
    )


@pytest.fixture
def opened():
    location = memory() / "out"
    return lambda: RecordStore.open(location)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose objects are files in the folder."""
    return f"file://{tmp_path}"


def begun(records: RecordStore, **more) -> RecordStore:
    records.begin(**{"settings": SETTINGS, "formats": ("json",)} | more)
    return records


# Records


def test_a_record_is_created_once(opened) -> None:
    ours, theirs = begun(opened()), begun(opened())
    assert ours.create(record("s3://calls/a.mp3"))
    assert not theirs.create(record("s3://calls/a.mp3", text="b"))
    stored = theirs.load()["s3://calls/a.mp3"]
    assert (theirs.all_doubled, theirs.created) == (1, 0)
    theirs.adopt(stored)
    assert theirs.created == 1
    assert stored.record == record("s3://calls/a.mp3") or stored.record.attempt == 1
    assert stored.worker == ours.worker and stored.run == 1 and stored.generation == 1


def test_an_outputs_fingerprint_is_that_of_its_record(opened) -> None:
    store = begun(opened())
    store.create(record("a.mp3"))
    ledger = RecordLedger(store, "out", opened().load(), frozenset())
    assert ledger.fingerprint("a.mp3.json") == f"sha256:a+{SETTINGS}"
    assert ledger.fingerprint("b.mp3.json") is None


def test_records_are_read_back_as_they_were(opened) -> None:
    names = ["a.mp3", "x/\udcff.mp3", "s3://b/é\n.mp3", "-"]
    store = begun(opened())
    for name in names:
        assert store.create(record(name), version=f"12:{len(name)}")
    found = opened().load()
    assert set(found) == set(names)
    assert {s.version for s in found.values()} == {f"12:{len(name)}" for name in names}


def test_a_success_takes_the_place_of_a_failure_and_nothing_of_a_success(opened) -> None:
    ours, theirs = begun(opened()), begun(opened())
    assert ours.create(record("a", "failed"))
    assert theirs.create(record("a"))  # began before the failure was recorded
    assert not ours.create(record("a", "failed"))
    assert opened().load()["a"].record.status == "succeeded"
    assert opened().load()["a"].generation == 2


def test_a_failure_is_tried_again_by_a_later_run(opened) -> None:
    begun(opened()).create(record("a", "failed"))
    later = begun(opened())
    later.load()
    assert later.create(record("a", "failed"), seen=later.generation("a"))
    assert (stored := opened().load()["a"]).generation == 2 and stored.record.attempt == 2


def test_many_threads_leave_one_record(opened) -> None:
    store = begun(opened())
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda: won.append(store.create(record("a")))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.load()
    assert won.count(True) == 1 and store.all_doubled == 15


def test_a_damaged_record_is_no_record(tmp_path: Path, url: str) -> None:
    store = begun(RecordStore.open(url))
    store.create(record("a"))
    (path,) = (tmp_path / "_forescribe/records").iterdir()
    path.write_text('{"path": "a", "sta')
    again = begun(RecordStore.open(url))
    assert again.load() == {} and again.create(record("a"))
    assert RecordStore.open(url).load()["a"].generation == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": "now"},
        {"at": float("inf")},
        {"audio_s": "3"},
        {"path": 5},
        {"code": ["x"]},
        {"outputs": [1]},
        {"run": "1"},
        {"worker": [1]},
        {"version": 7},
        {"generation": None},
    ],
)
def test_a_record_with_values_of_other_kinds_is_no_record(tmp_path: Path, url, wrong) -> None:
    store = begun(RecordStore.open(url))
    store.create(record("a"))
    (path,) = (tmp_path / "_forescribe/records").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert RecordStore.open(url).load() == {}
    assert begun(RecordStore.open(url)).create(record("a"))


def test_an_output_that_can_only_be_read_is_refused() -> None:
    for url in ("https://example.com/out", "hf://datasets/org/name"):
        with pytest.raises(UsageError, match="can only be read"):
            RecordStore.open(url)


# Runs


def test_a_run_is_continued_with_its_settings_and_refused_with_others(opened) -> None:
    first = opened().begin(settings=SETTINGS, formats=("json",), total=10)
    assert opened().begin(settings=SETTINGS, formats=("json",), total=10) == first
    assert opened().begin(settings=SETTINGS, formats=("json",)) == first
    with pytest.raises(UsageError, match="other settings.*--overwrite"):
        opened().begin(settings="0123", formats=("json",))
    assert opened().join() == first


def test_overwriting_begins_again(opened) -> None:
    begun(opened()).create(record("a"))
    store = begun(opened(), settings="0123", overwrite=True)
    assert store.run.number == store.run.since == 2
    stored = store.load()["a"]
    assert not stored.counts_in(store.run)
    assert store.create(record("a"), seen=stored.generation)
    assert opened().load()["a"].counts_in(store.run)


def test_another_format_continues_the_run(opened) -> None:
    begun(opened()).create(record("a"))
    store = begun(opened(), formats=("json", "srt"))
    assert store.run.formats == ("json", "srt") and store.run.since == 1
    assert store.load()["a"].counts_in(store.run)
    assert begun(opened()).run == store.run  # the first formats again: nothing new


def test_two_that_begin_together_are_in_one_run(opened) -> None:
    stores = [opened() for _ in range(8)]
    threads = [threading.Thread(target=begun, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store.run.number for store in stores} == {1}


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path, url: str) -> None:
    begun(RecordStore.open(url))
    path = tmp_path / "_forescribe/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(UsageError, match="newer version"):
        RecordStore.open(url).join()
    path.write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        RecordStore.open(url).join()


# Requests


def test_records_are_read_with_few_requests() -> None:
    location = memory()
    writer = begun(RecordStore.open(location))
    for number in range(50):
        writer.create(record(str(number)))
    assert writer.merge() == 50
    for number in range(50, 55):
        writer.create(record(str(number)))
    store = open_store(location)
    reader = RecordStore(store, "out")
    assert len(reader.load()) == 55
    assert store.requests == {"list": 1, "get": 1 + 5}  # the manifest, and what is newer
    reader.load()
    assert store.requests == {"list": 2, "get": 2 + 5}


def test_creating_a_record_is_one_request() -> None:
    store = open_store(memory())
    records = begun(RecordStore(store, "out"))
    before = store.requests.total()
    records.create(record("a"))
    assert store.requests.total() - before == 1


# The merged manifest


def test_the_manifest_has_the_latest_record_of_each(opened) -> None:
    store = begun(opened())
    store.create(record("a", "failed"))
    store.create(record("b"))
    store.create(record("a"), seen=1)
    assert store.merge() == 2 == opened().merge()
    assert set(opened().load()) == {"a", "b"}


# Crashes


def test_crashes_are_counted_until_there_is_a_record(opened) -> None:
    driver = begun(opened())
    for number in range(1, MAX_CRASHES + 1):
        assert driver.count_crash("a") == number
    later = begun(opened())
    later.load()
    assert later.crashes("a") == MAX_CRASHES and later.crashes("b") == 0
    assert later.create(record("a", "failed"))  # it is given up, or was found alone
    later.load()
    assert later.crashes("a") == 0


# Faults


class Fleet(RuleBasedStateMachine):
    """Workers with lossy connections and lagging listings; any may be killed between two requests."""

    SOURCES = [f"s3://calls/{n}.mp3" for n in range(4)]

    @initialize(data=st.data())
    def prepare(self, data) -> None:
        self.location, self.draws = memory(), data
        self.workers: list[RecordStore] = []
        self.work: list[tuple[RecordStore, str, int]] = []  # begun, with the generation seen
        self.won: dict[str, int] = dict.fromkeys(self.SOURCES, 0)
        self.unsure: set[str] = set()
        self.tokens = itertools.count()

    def fate(self, kind: str) -> str:
        fates = [OK, OK, OK, LOST, REPLY_LOST] + [LAGS] * 2 * (kind == "list")
        return self.draws.draw(st.sampled_from(fates), label=kind)

    @rule()
    def start_a_worker(self) -> None:
        store = RecordStore(faulty_store(self.location, self.fate, attempts=4), "out")
        try:
            begun(store)
            store.load()
        except StorageError:
            return  # it does not start; another one may
        self.workers.append(store)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def take(self, data) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        source = data.draw(st.sampled_from(self.SOURCES))
        stored = worker._known.get(source)
        done = stored is not None and stored.record.status == "succeeded"
        if not (done and stored.counts_in(worker.run)):
            self.work.append((worker, source, worker.generation(source)))

    @precondition(lambda self: self.work)
    @rule(data=st.data(), status=st.sampled_from(["succeeded", "succeeded", "failed"]))
    def finish(self, data, status: str) -> None:
        worker, source, seen = self.work.pop(data.draw(st.integers(0, len(self.work) - 1)))
        try:
            ours = worker.create(record(source, status), seen=seen)
        except StorageError:
            self.unsure.add(source)
            return
        if status == "succeeded":
            self.won[source] += ours

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def kill(self, data) -> None:
        dead = self.workers.pop(data.draw(st.integers(0, len(self.workers) - 1)))
        self.work = [item for item in self.work if item[0] is not dead]

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def merge(self, data) -> None:
        try:
            data.draw(st.sampled_from(self.workers)).merge()
        except StorageError:
            return  # the records are the truth, not the manifest

    @invariant()
    def nothing_is_lost_and_one_record_wins(self) -> None:
        if not getattr(self, "location", None):
            return
        found = RecordStore.open(self.location).load()
        for source, won in self.won.items():
            assert won <= 1
            if won:
                assert found[source].record.status == "succeeded"


TestFleet = Fleet.TestCase
TestFleet.settings = limits(max_examples=60, stateful_step_count=30, deadline=None)
