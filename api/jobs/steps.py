"""The steps of the plays: what is done between two records of the engine.

    steps("group", job, run, 3)          # the group's hash; None where the run is over

Each can be done twice: what it makes is kept by its hash, and the row says what is there already. A fault
that may pass is tried again here; what stays is the job's, as a code. An answer is never text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import AudioError, ForescribeError, OutputError
from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from ..settings import Settings
from ..speech.serving import NAME, Serving
from .engines.workflow_engine import JobEngine, Stopping
from .in_progress import Inside
from .job_metrics import JobMetrics
from .lane import Lane
from .records import Job, callback_of, run_of
from .request import JobForm, transcription
from .store import Store, Tx
from .webhooks import Webhooks

if TYPE_CHECKING:
    from forescribe.asr.audio.decoded_file import DecodedFile
    from forescribe.asr.sessions.cut_plan import Plan
    from forescribe.asr.sessions.session import Session
    from forescribe.asr.sessions.window_groups import Group
    from forescribe.diarize.speakers.known_speakers import KnownSpeaker

log = logging.getLogger("forescribe.api")

PAUSES_S: Sequence[float] = (0.5, 1.0, 2.0)
"""Between tries of a step whose fault may pass."""

PASSING = frozenset({"internal_error", "overloaded", "unwritable_output", "storage_full"})
SHARED = frozenset({"group", "assemble"})
"""Steps that wait for the engine that all share."""

STORAGE = frozenset({"storage_full", "unwritable_output"})
ROOM = 4 << 20
"""Bytes without which a disk counts as full, whatever the settings say."""

TRANSCRIPTS = frozenset({"spoken", "result"})
"""Roles of blobs that are transcripts, the first one before the speakers."""

POLL_S = 0.1
AWAY_S = 1.0
"""Between looks for a database that is away."""

LET_GO_S = 10.0
"""For the engine's round, and the reader's block, that a recording is left in."""


def report(where: str, error: Exception) -> None:
    """A fault in the log: its kind and its place, for its words may hold a transcript's."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    told = {"event": "job_fault", "in": where, "error": type(error).__name__, "place": place}
    log.error(json.dumps(told))


class Over(BaseException):
    """The run is not the job's any more: cancelled, deleted, begun anew. Nothing of it counts."""


class Aside(BaseException):
    """Somebody else needs the engine alone; the step begins again behind it."""


class Steps:
    """The steps, and the lanes of the jobs that this process is doing."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        store: Store,
        engine: JobEngine,
        webhooks: Webhooks,
        metrics: JobMetrics,
    ) -> None:
        self.settings, self.serving, self.metrics = settings, serving, metrics
        self.store, self.engine, self.webhooks = store, engine, webhooks
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._spools: dict[str, DecodedFile] = {}
        self._left: set[str] = set()  # jobs that nobody is to wait for any more
        self._turn = threading.Lock()  # of those that go back into the engine after a fault
        self.inside = Inside(
            store, engine.executor, lambda: serving.admission.requests, self._aside
        )
        serving.joined = self.inside.joined

    def __call__(self, step: str, job: str, run: int, *args: int) -> Any:
        """The step's answer; None where the run is over. Waits out a database that is away, and an engine
        that is broken. Raises Stopping."""
        if step == "deliver":
            return self._stored(job, lambda: self._deliver(job, run, *args))
        pauses, tried, full = iter(PAUSES_S), False, False
        while True:
            try:
                if full:
                    self._wait_for_room(lambda: self._wanted(job))
                    full = False
                with self._alone(job) if tried and step in SHARED else nullcontext():
                    return self._through(job, lambda: getattr(self, f"_{step}")(job, run, *args))
            except Over:
                self._release(job)
                return None
            except Aside:
                self._release(job)
                continue
            except Stopping:
                self._release(job)
                raise
            except ForescribeError as error:
                if error.code in STORAGE and not self._roomy():
                    report(step, error)
                    self._release(job)  # nor does it hold its samples meanwhile
                    full = True
                    continue
                told, passing = ApiError.of(error), error.code in PASSING
            except ApiError as error:
                told, passing = error, error.code in PASSING
            except Exception as error:
                report(step, error)  # our fault; the others go on
                told, passing = ApiError("internal_error", "the server failed"), True
                told.__cause__ = error
            self._release(job)
            if self.stopping.is_set() or self.serving.leaving:
                raise Stopping
            tried = True
            broken = self.serving.state in ("broken", "failed")  # no fault of the job's, and no try
            pause_s = POLL_S if broken else next(pauses, None)
            passing |= broken
            if not passing or pause_s is None:
                return self._stored(job, lambda: self.fail(job, run, told))  # noqa: B023
            if self.stopping.wait(pause_s):
                raise Stopping

    def _stored(self, job: str, act: Callable[[], Any]) -> Any:
        """What `act` gives, once it can be written down. Raises Stopping."""
        while True:
            try:
                return self._through(job, act)
            except OutputError as error:
                report("storage", error)
                self._wait_for_room(lambda: None)

    def _roomy(self) -> bool:
        """Whether it is not for want of a disk that nothing goes on."""
        least = max(self.settings.min_free_bytes, ROOM)
        return (
            self.store.blobs.free >= least
            and shutil.disk_usage(tempfile.gettempdir()).free >= ROOM
            and self.store.writable()
        )

    def _wait_for_room(self, wanted: Callable[[], None]) -> None:
        """A full disk, or one that takes no writes, is no fault of a job's, and no try. Raises Stopping,
        and what `wanted` does."""
        while True:
            if self.stopping.wait(AWAY_S):
                raise Stopping
            wanted()
            if self._roomy():
                return

    def _through(self, job: str, act: Callable[[], Any]) -> Any:
        """What `act` gives, however often the database goes away meanwhile: that is nobody's fault, and
        counts as no try. Raises Stopping."""
        while True:
            try:
                return act()
            except DBAPIError as error:
                if not self.store.lost(error):
                    raise
                report("database", error)
                self._release(job)  # what was decoded and not written down is decoded again
                while not self.store.there():
                    if self.stopping.wait(AWAY_S):
                        raise Stopping from None

    @contextmanager
    def _alone(self, job: str) -> Iterator[None]:
        """A fault of the engine ends all that is in it. Who is tried again goes in one at a time, so that
        a job that causes the fault spends its own tries and not its neighbours'."""
        while not self._turn.acquire(timeout=POLL_S):
            self._wanted(job)
        try:
            yield
        finally:
            self._turn.release()

    def stop(self) -> None:
        """Who waits in a step leaves it, without an answer."""
        self.stopping.set()
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.leave(Stopping())

    def leave(self, job: str) -> None:
        """The job's rows in the engine are free before its next round."""
        with self._lock:
            self._left.add(job)
            lane = self._lanes.get(job)
        if lane is not None:
            lane.leave(Over())

    def _wanted(self, job: str) -> None:
        """Raises Stopping, Over."""
        if self.stopping.is_set():
            raise Stopping
        if job in self._left:
            raise Over

    def _aside(self, job: str) -> None:
        with self._lock:
            lane = self._lanes.get(job)
        if lane is not None:  # other work is not to be had back, and is waited for
            lane.leave(Aside())

    # -- transcription ----------------------------------------------------------------------------

    def _prepare(self, job: str, run: int) -> int:
        """How many groups there are; the plan is kept."""
        with self.store.writing() as tx:
            if self.store.begin(tx, job, run) is None:
                raise Over
        with self._lock:
            self._left.discard(job)
        name = self.store.ref(job, "plan")
        if name is not None:
            return len(self._plan(name).groups)
        plan = self._planned(job)
        self._keep(job, run, "plan", plan.to_dict())
        return len(plan.groups)

    def _planned(self, job: str) -> Plan:
        from forescribe.asr.audio.reading import open_audio
        from forescribe.asr.sessions.cut_plan import plan_of

        session, form = self._session(), self._form(job)
        options = transcription(form, self.serving, self.settings)
        spool = self._spool(job)
        with (
            self.inside.job(job, lambda: self._wanted(job)),
            open_audio(spool, name=NAME) as recording,
        ):
            return plan_of(recording, session.context.detector, options.windows)

    def _group(self, job: str, run: int, k: int) -> str:
        """The hash of group `k`."""
        self._check(job, run)
        name = self.store.ref(job, "group", k)
        if name is not None:
            return name
        group = self._lane(job).group(k)
        plan = self._plan(self._ref(job, "plan"))
        with self._kept(json.dumps(group.to_dict())) as name, self.store.writing() as tx:
            if self.store.mine(tx, job, run) is None:
                raise Over
            before = self.store.held(tx, job, "group", k)
            if before is None:
                self.store.refer(tx, job, "group", name, k)
                self.store.progress(tx, job, plan.until_s(k))
                self._log_group(tx, job, group, name)
        self.inside.got_on(job)
        if before not in (None, name):  # a process that was taken for dead has been first
            self.store.collect([name])
        return before or name

    def _log_group(self, tx: Tx, job: str, group: Group, name: str) -> None:
        last = self.store.last_segment(tx, job) if group.k else None
        first = 0 if last is None else last["first"] + last["count"]
        told = {"k": group.k, "first": first, "count": len(group.segments), "blob": name}
        self.store.log(tx, job, "segment", told)

    def _assemble(self, job: str, run: int) -> str:
        """The hash of the transcript without speakers."""
        self._check(job, run)
        name = self.store.ref(job, "spoken")
        if name is not None:
            return name
        outcome = self._lane(job).outcome()
        self.inside.leave(job)
        assert outcome.transcript is not None
        name = self._keep(job, run, "spoken", outcome.transcript.to_dict())
        self.serving.metrics.ended(outcome)
        return name

    def _lane(self, job: str) -> Lane:
        """The job's lane; opened behind the groups that are there, if this process has none."""
        with self._lock:
            lane = self._lanes.get(job)
        if lane is None:
            self._spool(job)  # decoded before its turn comes
            self.inside.enter(job, lambda: self._wanted(job))
            lane = self._opened(job)
            self._wanted(job)  # while there was nothing to leave
        return lane

    def _opened(self, job: str) -> Lane:
        from forescribe.asr.sessions.planned import planned

        session, lane = self._session(), Lane()
        made = planned(
            session.context,
            self._spool(job),
            transcription(self._form(job), self.serving, self.settings),
            lane,
            plan=self._plan(self._ref(job, "plan")),
            kept=self._groups(job),
            grouped=lane.grouped,
            arrived_s=session.clock(),
            name=NAME,
        )
        with self._lock:
            self._lanes[job] = lane
        lane.enter(session, made)
        return lane

    def _spool(self, job: str) -> DecodedFile:
        """The job's samples, decoded apart, for as long as this process works on it."""
        with self._lock:
            spool = self._spools.get(job)
        if spool is None:
            self._session()  # a decoder beside a model that is still loading would slow both
            with self._audio(job).open("rb") as file:
                spool = asyncio.run(self.serving.decoded(file))
            with self._lock:
                self._spools[job] = spool
        return spool

    def _release(self, job: str) -> None:
        """Nobody works on the job any more: its rows in the engine are free, its samples gone."""
        with self._lock:
            lane, spool = self._lanes.pop(job, None), self._spools.pop(job, None)
        if lane is not None:
            lane.leave(Over())
            lane.wait(LET_GO_S)
        if spool is not None:
            spool.close()
        self.inside.leave(job)

    # -- speakers ---------------------------------------------------------------------------------

    def _diarize(self, job: str, run: int) -> str:
        """The hash of the result: with speakers, where they were asked for."""
        with self.store.writing() as tx:
            row = self.store.begin(tx, job, run)
        if row is None:
            raise Over
        with self._lock:
            self._left.discard(job)
        form, spoken = self._form(job), self._ref(job, "spoken")
        if row.kind == "transcribe" and not form.speakers:
            return self._keep_ref(job, run, "result", spoken)
        count = cast(int | None, row.options.get("num_speakers"))
        transcript = Transcript.from_dict(json.loads(self.store.blobs.read(spoken)))
        told, before = self._told(job, transcript, form, count), self.store.ref(job, "result")
        name = self._keep(job, run, "result", told.to_dict())
        if before not in (None, name):
            self.store.collect([before])
        return name

    def _told(
        self, job: str, transcript: Transcript, form: JobForm, count: int | None
    ) -> Transcript:
        from forescribe.asr.audio.reading import open_audio
        from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.transcripts.diarizing_transcriber import add_speakers

        def going_on(step: str, done: float) -> None:
            self._wanted(job)

        spool = self._spool(job)
        with (
            self.inside.job(job, lambda: self._wanted(job)),
            open_audio(spool, name=NAME) as recording,
        ):
            found = diarize_blocks(
                self.serving.speakers,
                split_into_blocks(recording.blocks()),
                Bounds(exactly=count),
                going_on,
                sample_count=transcript.sample_count,
            )
        return add_speakers(transcript, found, self._known(form))

    def _known(self, form: JobForm) -> Sequence[KnownSpeaker]:
        if not form.known_speaker_names:
            return ()
        names, references = form.known_speaker_names, form.known_speaker_references
        return asyncio.run(self.serving.speakers.known(names, references))

    # -- ends -------------------------------------------------------------------------------------

    def _finish(self, job: str, run: int) -> bool:
        with self.store.writing() as tx:
            row = self.store.mine(tx, job, run)
            if row is None:
                raise Over
            self.store.progress(tx, job, row.total_s)
            self.end(tx, row, "succeeded")
        self._release(job)
        return True

    def fail(self, job: str, run: int, error: ApiError) -> None:
        """The job has failed; one that had a transcript before keeps it."""
        with self.store.writing() as tx:
            row = self.store.mine(tx, job, run)
            if row is not None:
                state = "succeeded" if row.kind == "diarize" else "failed"
                self.end(tx, row, state, (error.code, error.message))

    def restart(self, job: str, run: int) -> None:
        """Another run of a job that is open and whose work has ended."""
        with self.store.writing() as tx:
            if self.store.mine(tx, job, run) is not None:
                again = self.store.restart(tx, job)
                self.engine.enqueue(tx, run_of(job, again.run, again.kind))

    def end(self, tx: Tx, job: Job, state: Any, error: tuple[str, str] | None = None) -> Job:
        """The end of a job, and the first try of its callback, or neither."""
        ended = self.store.end(tx, job.id, state, error)
        self.metrics.ended(state)
        if ended.hook is not None:
            self.engine.enqueue(tx, callback_of(job.id, job.run, 0))
        return ended

    def _deliver(self, job: str, run: int, number: int) -> str:
        """One try of a callback; the next one is queued where it fails."""
        row = self.store.job(job)
        if row is None or row.run != run or row.hook is None or row.hook.state != "pending":
            return "over"
        answer = self.webhooks.deliver(row)
        wait_s = self.webhooks.wait_s(number + 1) if answer == "failed" else None
        self.metrics.called_back(answer)
        with self.store.writing() as tx:
            if wait_s is None:
                self.store.hook(tx, job, answer, number + 1)
            else:
                self.store.hook(tx, job, "pending", number + 1)
                self.engine.enqueue(tx, callback_of(job, run, number + 1, wait_s))
        return answer

    # -- what is there ----------------------------------------------------------------------------

    def _session(self) -> Session:
        """Waits while the model is loading, and with an engine that is broken for the end of the process:
        the next one goes on. Raises Stopping where it will not be there."""
        while self.serving.state in ("loading", "broken", "failed"):
            if self.stopping.wait(POLL_S):
                raise Stopping
        if not self.serving.open or self.serving.session is None:
            raise Stopping
        return self.serving.session

    def _check(self, job: str, run: int) -> None:
        row = self.store.job(job)
        if row is None or row.run != run or row.ended:
            raise Over

    def _form(self, job: str) -> JobForm:
        return JobForm.model_validate_json(self.store.blobs.read(self._ref(job, "form")))

    def _audio(self, job: str) -> Path:
        name = self.store.ref(job, "audio")
        if name is None:
            raise AudioError("the job's audio is not kept any more", code="missing_file")
        return self.store.blobs.path(name)

    def _plan(self, name: str) -> Plan:
        from forescribe.asr.sessions.cut_plan import Plan

        return Plan.from_dict(json.loads(self.store.blobs.read(name)))

    def _groups(self, job: str) -> list[Group]:
        from forescribe.asr.sessions.window_groups import Group

        names = self.store.refs(job, "group")
        return [Group.from_dict(json.loads(self.store.blobs.read(name))) for name in names]

    def _ref(self, job: str, role: str) -> str:
        name = self.store.ref(job, role)
        if name is None:
            raise Over  # it has been erased
        return name

    def _keep(self, job: str, run: int, role: str, data: Mapping[str, Any]) -> str:
        with self._kept(json.dumps(data)) as name:
            return self._keep_ref(job, run, role, name, data)

    @contextmanager
    def _kept(self, text: str) -> Iterator[str]:
        """A blob with this text, to be referred to in the block. If that is left without, nothing of
        it stays: the run may be over because the job is being erased."""
        name = None
        try:
            with self.store.blobs.keeping():
                name = self.store.blobs.put(text.encode())
                yield name
        except BaseException:
            if name is not None:
                self.store.collect([name])
            raise

    def _keep_ref(
        self, job: str, run: int, role: str, name: str, data: Mapping[str, Any] | None = None
    ) -> str:
        with self.store.writing() as tx:
            if self.store.mine(tx, job, run) is None:
                raise Over
            self.store.refer(tx, job, role, name)
            self.store.forgive(tx, job)
            if data is not None and role in TRANSCRIPTS:
                self.store.warn(tx, job, data["warnings"])
        return name
