"""What happens from poll to poll: admission, draft lengths, and what schedules are told."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative import Engine, ModelDrafter, Request
from forescribe.speculative.device import Device
from forescribe.speculative.engine.polls import Periods
from forescribe.speculative.engine.table import FaultLog
from forescribe.speculative.protocols import Poll
from forescribe.speculative.requests import Finish
from tests.speculative.tiny import TinyModel


class LateReads(Device):
    """As a card without events."""

    late_reads = True


class Recording:
    """A schedule that records what it is told."""

    buckets = (0, 2)

    def __init__(self, gamma: int = 2) -> None:
        self.gamma, self.polls = gamma, []

    def choose(self) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        self.polls.append(poll)


def engine(batch: int = 2, schedule=None, target=None, **options) -> Engine:
    drafter = ModelDrafter(TinyModel(blur=0.3))
    return Engine(
        target or TinyModel(),
        drafter,
        batch=batch,
        eos=(99,),
        schedule=schedule or Recording(),
        **options,
    )


def tags(made: Engine) -> dict[int, object]:
    return {row: entry.request.tag for row, entry in made._texts.table.occupied.items()}


# Admission


def test_requests_are_admitted_in_order_while_there_are_slots():
    made = engine()
    for tag in "abc":
        made.submit(Request((1, 2), tag=tag))
    made.step()
    assert tags(made) == {0: "a", 1: "b"}
    assert [entry.request.tag for entry in made._texts.waiting] == ["c"]
    assert made.stats.target_forwards == 2  # both prompts together, and the round


def test_a_request_without_room_ends_in_the_first_poll():
    made = engine()
    made.submit(Request((1, 2), max_new_tokens=0))
    (result,) = made.step()
    assert (result.tokens, result.finish) == ((), Finish.LENGTH)
    assert made.free == 2


def test_the_drafter_reads_only_when_it_is_about_to_draft():
    schedule = Recording(gamma=0)
    made = engine(schedule=schedule)
    made.submit(Request((1, 2)))
    for _ in range(3):
        made.step()
    held = made._texts.table
    assert held.unread_prompts and held.unread_tokens == 3 and not made.stats.draft_forwards
    schedule.gamma = 2
    made.step()
    assert not held.unread_prompts and not held.unread_tokens
    assert made.stats.draft_forwards == 2 + 2  # the prompt, the text, and two drafts


def test_rounds_reach_no_further_than_the_longest_row():
    class Reached(TinyModel):
        reaches: list[int] = []

        def score(self, tokens, start, *, reach):
            self.reaches.append(reach)
            return super().score(tokens, start, reach=reach)

    made = engine(target=Reached(positions=300))
    requests = [Request((1, 2), max_new_tokens=count) for count in (100, 5, 5, 5)]
    list(made.run(requests[:2]))
    assert max(Reached.reaches) == 128
    del Reached.reaches[:]
    list(made.run(requests[2:]))
    assert set(Reached.reaches) == {64}


# Periods


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the host's clock shows."""
    shown = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: shown[0])
    return shown


def periods(schedule) -> tuple[Periods, FaultLog]:
    """Of an engine of one row."""
    made = engine(1, schedule)
    return made._texts.periods, made._shared.faults


def run(made: Periods, rounds: int = 1, totals: tuple[int, int, int] = (0, 0, 0)) -> None:
    """Rounds after which the counters show so many judged and accepted drafts, and row rounds."""
    made.now.rounds = rounds
    counters = made._table.counters
    counters.judged.fill_(totals[0])
    counters.accepted[0], _ = totals[1], counters.row_rounds.fill_(totals[2])


def end(made: Periods) -> None:
    made.end()
    list(made.read(late=0))


def test_a_period_reports_its_rounds_once(clock):
    schedule = Recording()
    made, _ = periods(schedule)
    for n in range(2):
        made.begin(read=None)
        assert made.now.gamma == 2
        run(made, 3, (6 * n + 6, 3 * n + 3, 3 * n + 3))
        clock[0] += 1.5
        end(made)
    assert schedule.polls == 2 * [Poll(2, 3, 3, 6, 3, 1.5, width=0.0)]


def test_what_the_drafter_reads_is_timed_apart_from_the_rounds(clock):
    schedule = Recording()
    made, _ = periods(schedule)
    made._table.unread_prompts[0] = Request((1,))
    clock[0] = 5.0

    def read() -> None:
        clock[0] += 2.0

    made.begin(read=read)
    run(made, 1, (2, 1, 1))
    clock[0] += 0.5
    end(made)
    (poll,) = schedule.polls
    assert (poll.read, poll.reading_s, poll.seconds) == (1, 2.0, 0.5)


@pytest.mark.parametrize("disturbance", ["fault", "mixed", "nothing ran"])
def test_a_disturbed_period_is_not_reported(disturbance):
    schedule = Recording()
    made, log = periods(schedule)
    made.begin(read=None)
    run(made, int(disturbance != "nothing ran"))
    made.now.disturbed = disturbance == "mixed"
    if disturbance == "fault":
        log.record("scoring", RuntimeError("planted"))
    end(made)
    assert schedule.polls == []
    made.begin(read=None)
    run(made)
    end(made)
    assert len(schedule.polls) == 1


def test_a_pause_without_requests_is_no_period_of_late_reads(clock):
    schedule = Recording()
    late = LateReads("cpu", torch.float32)
    made = engine(1, schedule, device=late)
    for _ in range(2):
        made.submit(Request((1, 2), max_new_tokens=8))
        while not made.idle:
            clock[0] += 1.0
            made.step()
        made.step()
        clock[0] += 3600.0
    assert schedule.polls and max(poll.seconds for poll in schedule.polls) < 10.0


@pytest.mark.parametrize("launched", [1.0, 4.0])
def test_a_late_period_lasts_from_the_snapshot_before_it_or_from_its_launch(clock, launched):
    """Without events: the device began it when it had ended the one before, or when it was told to."""
    schedule = Recording()
    made, _ = periods(schedule)
    for began in (0.0, launched):
        clock[0] = began
        made.begin(read=None)
        run(made)
        made.end()
    for clock[0], late in ((3.0, 1), (7.0, 0)):
        assert len(list(made.read(late=late))) == 1
    assert [poll.seconds for poll in schedule.polls] == [3.0, 7.0 - max(3.0, launched)]
