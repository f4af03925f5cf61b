"""Jobs that may have killed a process: their record, and their work in a process of its own.

    with crashes.exposed(job, check) as suspect:   # the job is on record
        if suspect:
            plan = crashes.alone(job, check, plan_alone, samples, options)

`CrashTracker` knows which jobs have work in code that can take the process down: voice activity detection,
the engine and the diarizer. The record is a row that is committed before the work begins, so it outlives the
process. The rows of a dead process name the jobs that may have killed it; jobs that wait, are being decoded
(in a child process), written or called back did not. One death does not tell which of several exposed jobs
caused it, and a process is also killed from outside. So a job that was exposed in `SUSPECT` deaths is a
*suspect* until it progresses: its work is done in a child, with models of its own, where a death is its own
and disturbs no other. One child runs at a time, for one group: progress clears a suspect.

The functions below are the work: those named `..._alone` run in the child. Does not know rows of jobs or the
order of steps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from forescribe.asr.child_process import Begin, ChildDied, in_child
from forescribe.asr.errors import CapacityError, out_of_memory

from ..process.lifecycle import STALLED
from ..settings import Settings
from ..speech.serving import NAME, load_diarizer, load_transcriber
from .decoded_groups import DecodedGroups
from .store import Store

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.decode.session import Session
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.asr.segment.vad import Detector
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.diarizer import Diarization, Diarizer

SUSPECT = 2
"""Deaths of processes after which a job that was exposed in all of them is tried in a child."""

MAX_CRASHES = 3
"""Children that may die over a job before it fails."""

POLL_S = 0.1
"""How often a suspect that waits for its turn looks whether it goes on."""

T = TypeVar("T")


class CrashTracker:
    """The exposed jobs of this process."""

    def __init__(self, store: Store, executor: str) -> None:
        self.records, self.executor = store.crashes, executor
        self._lock = threading.Lock()
        self._exposed: dict[str, bool] = {}  # job: whether it is a suspect, which has the turn
        self._turn = threading.Lock()  # of the suspects: two more models may not fit
        self._ending = False

    @contextmanager
    def exposed(self, job: str, check: Callable[[], None]) -> Iterator[bool]:
        """Expose a job for a block. Yields whether it is a suspect."""
        try:
            yield self.expose(job, check)
        finally:
            self.withdraw(job)

    def expose(self, job: str, check: Callable[[], None]) -> bool:
        """Put the job on record; does nothing if it is exposed already. Returns whether it is a suspect, of
        which the turn is waited for: its work has to be done `alone`.

        `check` is called while waiting; it raises if the job is not to be continued.
        """
        with self._lock:
            if job in self._exposed:
                return self._exposed[job]
        suspect = self.records.deaths(job) >= SUSPECT
        while suspect and not self._turn.acquire(timeout=POLL_S):
            check()
        with self._lock:
            self._exposed[job] = suspect
        try:
            if not self._ending:  # from then on, a kill is meant for the process
                self.records.expose(self.executor, job)
        except BaseException:
            self._remove(job)
            raise
        return suspect

    def alone(
        self,
        job: str,
        check: Callable[[], None],
        work: Callable[..., T],
        samples: DecodedFile,
        *args: Any,
    ) -> T:
        """What `work(begin, samples, *args)` returns in a child. `check` may end it by raising.

        Raises SuspectDied if the child dies over its work, CapacityError if it does not come to it, and what
        the work raises.
        """
        given = HandedSamples.of(samples)
        try:
            return in_child(work, given, *args, files=(given.descriptor,), check=check)
        except ChildDied as died:
            check()  # not charged if the process or the job ends at the same time
            raise self._died(job, died) from died

    def withdraw(self, job: str) -> None:
        """Remove the job, if it is exposed. A row that cannot be written now is removed by `sync`."""
        with self._lock:
            exposed = job in self._exposed
        if exposed:
            try:
                self.records.withdraw(self.executor, job)
            except Exception:  # the database is away
                pass
            finally:
                self._remove(job)

    def progressed(self, job: str) -> None:
        """The job is no longer a suspect: it goes on in this process."""
        with self._lock:
            suspect = self._exposed.get(job, False)
        if suspect:
            self.withdraw(job)

    def sync(self) -> None:
        """Make the rows of this process equal to its exposed jobs."""
        with self._lock:
            jobs = frozenset(self._exposed)
        self.records.keep_only(self.executor, jobs)

    def end(self) -> None:
        """The process is about to end on purpose: from here on a kill counts against no job."""
        self._ending = True
        self.records.keep_only(self.executor, frozenset())

    def _died(self, job: str, died: ChildDied) -> Exception:
        if not died.begun:
            return CapacityError(
                "processes died while they worked on this job, so it is tried in one of its own, which could "
                f"not load its models beside those of the server: {died}; there may be too little memory"
            )
        return SuspectDied(self.records.count_crash(job), died)

    def _remove(self, job: str) -> None:
        with self._lock:
            if self._exposed.pop(job, False):
                self._turn.release()


class SuspectDied(Exception):
    """A child has died over a job. `last`: the job is not tried again."""

    def __init__(self, crashes: int, died: ChildDied) -> None:
        super().__init__(f"a process that worked on nothing else died over this job: {died}")
        self.last = crashes >= MAX_CRASHES


@dataclass(frozen=True)
class HandedSamples:
    """A decoded recording whose open file the child has too."""

    descriptor: int
    sample_count: int
    notices: tuple[Any, ...]

    @classmethod
    def of(cls, samples: DecodedFile) -> HandedSamples:
        return cls(samples.file.fileno(), samples.sample_count, samples.notices)

    def open(self) -> DecodedFile:
        from forescribe.asr.audio.inputs import DecodedFile

        return DecodedFile(NAME, os.fdopen(self.descriptor, "rb"), self.sample_count, self.notices)


# -- the work, in the process of the service or in a child ----------------------------------------


def plan_recording(
    samples: DecodedFile, detector: Detector, options: Options, check: Callable[[], None]
) -> Plan:
    """Cut a recording. `check` may end it by raising."""
    from forescribe.asr.audio.reading import open_audio
    from forescribe.asr.segment.cut_plan import plan_of

    def checked(blocks: Iterator[Samples]) -> Iterator[Samples]:
        for block in blocks:
            check()  # hours of silence are read in one go
            yield block

    with open_audio(samples, name=NAME) as recording:
        blocks = checked(recording.blocks())
        plan = plan_of(blocks, detector, options.windows, skip_silence=options.vad)
        return replace(plan, warnings=recording.warnings)


def find_speakers(
    samples: DecodedFile,
    diarizer: Diarizer,
    num_speakers: int | None,
    sample_count: int,
    check: Callable[[], None],
) -> Diarization:
    """Find the speakers of a recording, of which `sample_count` samples have a transcript."""
    from forescribe.asr.audio.reading import open_audio
    from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
    from forescribe.diarize.diarizer import Bounds

    with open_audio(samples, name=NAME) as recording:
        return diarize_blocks(
            diarizer,
            split_into_blocks(recording.blocks()),
            Bounds(exactly=num_speakers),
            lambda step, done: check(),
            sample_count=sample_count,
        )


# -- in a child -----------------------------------------------------------------------------------


def plan_alone(begin: Begin, given: HandedSamples, options: Options) -> Plan:
    """The plan of a suspect's recording."""
    from forescribe.asr.segment.vad import SileroDetector

    detector = SileroDetector()
    begin()
    return plan_recording(given.open(), detector, options, lambda: None)


def group_alone(
    begin: Begin,
    given: HandedSamples,
    settings: Settings,
    options: Options,
    plan: Plan,
    kept: Sequence[Group],
) -> Group:
    """The next group of a suspect, after those in `kept`; without what only its decoder needs."""
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.decode.session import Session

    with _enough_memory():
        session = Session(load_transcriber(settings).context, readers=1)
    begin()
    threading.Thread(target=session.run, daemon=True).start()
    threading.Thread(target=_end_if_it_hangs, args=(session, settings.stall_s), daemon=True).start()
    groups = DecodedGroups(session, given.open(), options, plan, kept)
    groups.submit()
    group = groups.wait_for(len(kept))
    return replace(Group.from_dict(group.to_dict()), segments=group.segments)


def speakers_alone(
    begin: Begin,
    given: HandedSamples,
    settings: Settings,
    num_speakers: int | None,
    sample_count: int,
) -> Diarization:
    """The speakers of a suspect's recording."""
    with _enough_memory():
        diarizer = load_diarizer(settings)
    begin()
    return find_speakers(given.open(), diarizer, num_speakers, sample_count, lambda: None)


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(
            "processes died while they worked on this job, so it is tried in one of its own, and there is no "
            "memory for a second model"
        ) from error


def _end_if_it_hangs(session: Session, limit_s: float) -> None:
    while session.standing_s <= limit_s:
        time.sleep(min(5.0, limit_s / 4))
    os._exit(STALLED)
