"""The files of a job: its request, audio, plan, groups and transcripts, as blobs with references.

    form = files.form(job)
    name = files.save(job, run, "plan", plan.to_dict())

Knows the roles of blobs and the record types that they hold; does not know how they are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import AudioError
from forescribe.asr.formats.transcript import Transcript

from ..job_form import JobForm
from ..storage.store import Store
from .step_control import RunReplaced

if TYPE_CHECKING:
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.asr.sessions.planned import Group

TRANSCRIPTS = frozenset({"spoken", "result"})
"""Roles of blobs that are transcripts: without speakers, and the result."""


class JobFiles:
    """Reads and writes the files of jobs. Raises RunReplaced where a file was erased or the run is not
    current."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- reading ----------------------------------------------------------------------------------

    def check_current(self, job: str, run: int) -> None:
        """Raises RunReplaced if the run is not the job's current one."""
        row = self.store.jobs.get(job)
        if row is None or row.run != run or row.ended:
            raise RunReplaced

    def name(self, job: str, role: str) -> str:
        """The blob of a role that must exist."""
        name = self.store.references.get(job, role)
        if name is None:
            raise RunReplaced  # the job has been erased
        return name

    def form(self, job: str) -> JobForm:
        return JobForm.model_validate_json(self.store.blobs.read(self.name(job, "form")))

    @contextmanager
    def audio(self, job: str) -> Iterator[Path]:
        """A local file with the audio, which exists for the block. Raises AudioError `missing_file` if it is
        not kept any more."""
        name = self.store.references.get(job, "audio")
        if name is None:
            raise AudioError("the job's audio is not kept any more", code="missing_file")
        with self.store.blobs.held(name) as path:
            yield path

    def plan(self, job: str) -> Plan:
        from forescribe.asr.segment.cut_plan import Plan

        return Plan.from_dict(self._json(self.name(job, "plan")))

    def groups(self, job: str) -> list[Group]:
        """The decoded groups, in order."""
        from forescribe.asr.sessions.planned import Group

        names = self.store.references.get_all(job, "group")
        return [Group.from_dict(self._json(name)) for name in names]

    def transcript(self, name: str) -> Transcript:
        return Transcript.from_dict(self._json(name))

    def _json(self, name: str) -> Any:
        return json.loads(self.store.blobs.read(name))

    # -- writing ----------------------------------------------------------------------------------

    def save(self, job: str, run: int, role: str, data: Mapping[str, Any]) -> str:
        """Store data as the blob of a role, and return its name."""
        text = json.dumps(data)
        with self.new_blob(text) as name:
            return self.refer(job, run, role, name, data, size=len(text))

    @contextmanager
    def new_blob(self, text: str) -> Iterator[str]:
        """Store a blob, and have the block refer to it.

        If the block raises, the blob is deleted: the run may be over because the job is being erased.
        """
        name = None
        try:
            with self.store.blobs.shared_lock():
                name = self.store.blobs.put(text.encode())
                yield name
        except BaseException:
            if name is not None:
                self.store.references.delete_unreferenced([name])
            raise

    def refer(
        self,
        job: str,
        run: int,
        role: str,
        name: str,
        data: Mapping[str, Any] | None = None,
        size: int | None = None,
    ) -> str:
        """Refer to a blob. `data` is its content, if it is new: a transcript's warnings go to the row, and
        its `size` in bytes counts for the job's owner."""
        with self.store.transaction() as tx:
            row = self.store.jobs.current(tx, job, run)
            if row is None:
                raise RunReplaced
            owner = row.owner if role in TRANSCRIPTS else None
            self.store.references.put(tx, job, role, name, owner=owner, size=size)
            self.store.crashes.clear(tx, job)
            if data is not None and role in TRANSCRIPTS:
                self.store.jobs.set_warnings(tx, job, data["warnings"])
        return name
