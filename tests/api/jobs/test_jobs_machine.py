"""Jobs in any order of calls: a model of a few dictionaries predicts every status.

The engine stands still unless a step lets it go on, so that calls meet jobs in every state.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.api.conftest import sound, until
from tests.api.jobs.application import JOBS, ended, submit

ENDED = {"succeeded", "failed", "cancelled"}
NEXT = {
    "queued": {"queued", "running", *ENDED},
    "running": {"running", *ENDED},
    **{state: {state} for state in ENDED},
}
"""What may be seen next without a call in between."""

UNDONE = {"failed", "cancelled"}


class Calls(RuleBasedStateMachine):
    """One client's calls. Bundles hold ids, of things erased too."""

    client = None
    audio = b""
    go = None

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, str] = {}  # of the jobs that are there, as last seen

    def seen(self, job: str) -> str:
        answer = self.client.get(f"{JOBS}/{job}")
        assert answer.status_code == 200
        state = answer.json()["state"]
        assert state in NEXT[self.state[job]], (self.state[job], state)
        self.state[job] = state
        return state

    def accepted(self, answer) -> str:
        assert answer.status_code == 202, answer.text
        self.state[answer.json()["id"]] = answer.json()["state"]
        assert answer.json()["state"] in NEXT["queued"]
        return answer.json()["id"]

    @rule(target=jobs)
    def submit_file(self) -> str:
        return self.accepted(submit(self.client, self.audio))

    @rule(id=jobs)
    def finish(self, id: str) -> None:
        """The engine goes on until this job has ended; others may end beside it."""
        if id in self.state:
            self.go.set()
            assert ended(self.client, id)["state"] in NEXT[self.state[id]]
            self.go.clear()
            self.seen(id)

    @rule(id=jobs)
    def cancel(self, id: str) -> None:
        answer = self.client.post(f"{JOBS}/{id}/cancel")
        if id not in self.state:
            assert answer.status_code == 404
            return
        before = self.state[id]
        assert answer.status_code == 200
        if before not in ENDED:
            until(lambda: self.seen(id) in ENDED)
            assert self.state[id] in {"cancelled", "succeeded"}

    @rule(id=jobs)
    def retry(self, id: str) -> None:
        state = self.seen(id) if id in self.state else None
        answer = self.client.post(f"{JOBS}/{id}/retry")
        if state is None:
            assert answer.status_code == 404
        elif state in UNDONE:
            self.accepted(answer)
        elif state == "succeeded":
            assert answer.status_code == 409
        else:  # it may have ended since
            assert answer.status_code == 409 or self.state[id] not in ENDED

    @rule(id=jobs, kind=st.sampled_from(["json", "srt", "transcript"]))
    def result(self, id: str, kind: str) -> None:
        state = self.seen(id) if id in self.state else None
        answer = self.client.get(f"{JOBS}/{id}/result", params={"response_format": kind})
        if state is None:
            assert answer.status_code == 404
        elif state == "succeeded":
            assert answer.status_code == 200
        elif state in UNDONE:
            assert answer.status_code == 404
        else:  # it may have ended since
            assert answer.status_code == 409 or self.seen(id) == "succeeded"

    @rule(id=consumes(jobs) | jobs)
    def delete(self, id: str) -> None:
        answer = self.client.delete(f"{JOBS}/{id}")
        assert answer.status_code == (404 if self.state.pop(id, None) is None else 204)
        for path in ("", "/result", "/audio", "/events"):
            assert self.client.get(f"{JOBS}/{id}{path}").status_code == 404

    # -- always -----------------------------------------------------------------------------------

    @invariant()
    def what_is_there_is_what_was_made(self) -> None:
        if self.client is None:
            return
        listed = self.client.get(JOBS, params={"limit": 100}).json()["data"]
        assert {job["id"] for job in listed} == set(self.state)
        for id in self.state:
            self.seen(id)

    def teardown(self) -> None:
        self.go.set()
        for id in list(self.state):
            self.client.delete(f"{JOBS}/{id}")
        self.go.clear()


@pytest.mark.parametrize("examples", [6, pytest.param(60, marks=pytest.mark.nightly)])
def test_any_order_of_calls_is_answered_as_the_model_says(client, held, examples) -> None:
    calls = type("Calls", (Calls,), {"client": client, "go": held, "audio": sound(2)})
    run_state_machine_as_test(
        calls,
        settings=settings(
            max_examples=examples,
            stateful_step_count=14,
            deadline=None,
            database=None,
            derandomize=examples == 6,  # CI's are always the same
            suppress_health_check=list(HealthCheck),
        ),
    )
