"""Between rounds: admission, pacing, results; each on its own."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative import Fixed, ModelDrafter, Request
from forescribe.speculative.device import Device
from forescribe.speculative.engine.admission import DraftReader
from forescribe.speculative.engine.context import EngineContext, FaultLog, SingleRowProcessor, Sizes
from forescribe.speculative.engine.scheduler import Pacing, Scheduler
from forescribe.speculative.errors import RequestError
from forescribe.speculative.graphs.shapes import ShapeSet
from forescribe.speculative.graphs.snapshots import HostCopy, Moment, SnapshotCopy
from forescribe.speculative.protocols import Poll
from forescribe.speculative.requests import Finish, Guarantee, Mode, Source
from forescribe.speculative.rounds.accept import GreedyMatch, RuleChoice, TokenRejection
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Distribution, Prefix

CPU = Device("cpu", torch.float32)


class Recording:
    """A schedule that records what it is told."""

    buckets = (0, 2)

    def __init__(self, gamma: int = 2) -> None:
        self.gamma, self.polls = gamma, []

    def choose(self, *, sampling: bool) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        self.polls.append(poll)


def scheduler(batch: int = 2, schedule=None, target=None) -> tuple[EngineContext, Scheduler]:
    drafter = ModelDrafter(TinyModel(blur=0.3))
    context = EngineContext.allocate(
        CPU, target or TinyModel(), drafter, Sizes(batch, 2, 0, None), (99,)
    )
    rules = RuleChoice(None, None, drafter)
    shapes = ShapeSet.of(CPU, batch, context.rows.scratch, (0, 2), (Mode(),))
    return context, Scheduler(
        context,
        rules,
        shapes,
        schedule or Recording(),
        DraftReader.of(context, shapes),
        lambda: 0.0,
    )


# Admission


def test_requests_are_admitted_in_order_while_there_are_slots():
    context, made = scheduler()
    for tag in "abc":
        made.submit(Request((1, 2), tag=tag))
    assert made.prepare() == Mode()
    assert [state.request.tag for _, state in context.slots.occupied()] == ["a", "b"]
    assert [state.request.tag for state in made.queue.waiting] == ["c"]
    assert context.counts.target_forwards == 1  # together


def test_a_request_that_fails_its_prefill_leaves_no_slot_occupied():
    class Refusing(TinyModel):
        def prefill(self, rows, tokens, encoder_states, nodes):
            if bool((tokens[:, 0] == 9).any()):
                raise RuntimeError("planted")
            return super().prefill(rows, tokens, encoder_states, nodes)

    context, made = scheduler(target=Refusing())
    made.submit(Request((9,), tag="bad"))
    made.submit(Request((1,), tag="good"))
    made.prepare()
    assert [(row, s.request.tag) for row, s in context.slots.occupied()] == [(1, "good")]
    (result,) = made.queue.own.take()
    assert result.finish is Finish.FAILED and result.error.stage == "prefill"
    assert context.rows.active.tolist() == [False, True]


def test_a_request_without_room_ends_in_the_first_poll():
    context, made = scheduler()
    made.submit(Request((1, 2), max_new_tokens=0))
    made.prepare()
    made.finish()
    (result,) = made.queue.own.take()
    assert (result.tokens, result.finish) == ((), Finish.LENGTH)
    assert context.slots.free() == [0, 1]


def test_what_the_target_does_not_have_is_refused_before_it_waits():
    _, made = scheduler()
    with pytest.raises(RequestError, match="token 11"):
        made.submit(Request((11,)))
    assert not made.queue.waiting


# Draft reader


def test_the_drafter_reads_only_when_it_is_about_to_draft():
    context, made = scheduler(schedule=Recording(gamma=0))
    made.submit(Request((1, 2)))
    made.prepare()
    assert context.slots.backlog.prompts and not context.counts.draft_forwards
    made.pacing.reset()
    made.pacing.schedule.gamma = 2
    context.slots.backlog.tokens = 3
    made.prepare()
    assert not context.slots.backlog.prompts and not context.slots.backlog.tokens
    assert context.counts.draft_forwards == 2  # the prompt, and the text


# Pacing


def pacing(schedule) -> tuple[Pacing, list[float], FaultLog]:
    clock, log = [0.0], FaultLog(CPU)
    return Pacing(schedule, log, lambda: clock[0], CPU), clock, log


def end(period: Pacing, judged: int = 0, accepted: int = 0, row_rounds: int = 0) -> None:
    """Ends a period, and reports it with these totals."""
    state = torch.tensor([1, 1, judged, row_rounds, accepted])
    copy = SnapshotCopy(HostCopy(state, None), Moment(CPU), batch=1)
    ended = period.end(copy, [None], grown=0)
    period.report(ended, copy.read())


def test_a_period_reports_its_rounds_once():
    schedule = Recording()
    period, clock, _ = pacing(schedule)
    for n in range(2):
        assert period.choose(sampling=bool(n)) == 2
        period.start_clock()
        for _ in range(3):
            period.count_round(uniform=True)
        clock[0] += 1.5
        end(period, judged=6 * n + 6, accepted=3 * n + 3, row_rounds=3 * n + 3)
    assert schedule.polls == [Poll(2, 3, 3, 6, 3, 1.5, sampling) for sampling in (False, True)]


@pytest.mark.parametrize("disturbance", ["fault", "mixed", "nothing ran"])
def test_a_disturbed_period_is_not_reported(disturbance):
    schedule = Recording()
    period, _, log = pacing(schedule)
    period.choose(sampling=False)
    if disturbance != "nothing ran":
        period.count_round(uniform=disturbance != "mixed")
    if disturbance == "fault":
        log.record("scoring", RuntimeError("planted"))
    end(period)
    assert schedule.polls == []
    period.choose(sampling=False)
    period.count_round(uniform=True)
    end(period)
    assert len(schedule.polls) == 1


def test_a_schedule_that_fails_gives_its_smallest_gamma():
    period, _, log = pacing(Recording(gamma=7))
    assert period.choose(sampling=False) == 0
    assert log.recent[0].stage == "the schedule"


# Results, rules and faults


@torch.inference_mode()
def test_a_result_has_what_its_row_has_written():
    context, made = scheduler()
    made.submit(Request((1, 2), tag="a"))
    made.prepare()
    rows = context.rows
    rows.tokens[0, 2:5] = torch.tensor([4, 5, 99])
    rows.sources[0, 2:5] = torch.tensor([Source.ACCEPTED, Source.BONUS, Source.PLAIN])
    rows.lengths[0], rows.rounds[0], rows.drafted[0], rows.accepted[0] = 5, 2, 2, 1
    context.slots.note_lengths([5, 1], context.slots.states)
    (partial,) = made.collector.partials({"a": 1})
    assert (partial.begin, partial.tokens) == (1, (5, 99))
    rows.active[0] = False
    taken = context.reader.take(rows, context.counters)
    context.slots.note_lengths(taken.read().lengths, context.slots.states)
    made.collector.end_inactive(taken.read(), context.slots.states, taken.moment)
    (result,) = made.queue.own.take()
    assert result.tokens == (4, 5, 99) and result.finish is Finish.STOP
    assert result.sources == (Source.ACCEPTED, Source.BONUS, Source.PLAIN)
    assert (result.rounds, result.drafted, result.accepted) == (2, 2, 1)
    assert result.guarantee is Guarantee.EXACT


def test_rules_are_chosen_by_whether_a_row_is_sampled():
    both = RuleChoice(None, None, None)
    assert isinstance(both.pick(sampling=False), GreedyMatch)
    assert isinstance(both.pick(sampling=True), TokenRejection)
    greedy = RuleChoice(GreedyMatch(), None, None)
    assert greedy.guarantee(sampling=True) is Guarantee.GREEDY_ONLY
    assert greedy.guarantee(sampling=False) is Guarantee.EXACT

    class DenseOnly(TokenRejection):
        distributions = frozenset({Distribution.DENSE})

    with pytest.raises(ValueError, match="cannot verify one-hot drafts; it takes: dense"):
        RuleChoice(None, DenseOnly(), None).check()


def test_a_processor_for_one_row_leaves_the_others_as_they_are():
    def double(logits, prefix):
        assert len(prefix.tokens) == len(logits) == 1
        return logits * 2

    logits = torch.ones(3, 2, 5)
    prefix = Prefix(torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(3))
    out = SingleRowProcessor(double, row=1, batch=3)(logits, prefix)
    assert out.mean((1, 2)).tolist() == [1, 2, 1]


def test_a_fault_log_counts_all_and_keeps_the_latest():
    log = FaultLog(CPU)
    assert log.attempt(lambda: None, "prefill") is None
    for n in range(20):
        error = log.attempt(lambda n=n: {}[n], "prefill")
        assert str(error) == f"prefill failed: KeyError: {n}"
    assert log.count == 20 and log.recent[-1] is error and len(log.recent) == 16


def test_a_fixed_schedule_learns_nothing_and_its_periods_end():
    period, _, _ = pacing(Fixed(2))
    period.count_round(uniform=True)
    end(period)
    assert period.rounds == 0


@pytest.mark.parametrize("launched", [1.0, 4.0])
def test_a_late_period_lasts_from_the_snapshot_before_it_or_from_its_launch(launched):
    """Without events: the device began it when it had ended the one before, or when it was told to."""
    schedule = Recording()
    period, clock, _ = pacing(schedule)
    ended = []
    for began in (0.0, launched):
        clock[0] = began
        period.choose(sampling=False)
        period.start_clock()
        period.count_round(uniform=True)
        copy = SnapshotCopy(HostCopy(torch.tensor([1, 1, 0, 0, 0]), None), Moment(CPU), batch=1)
        ended.append(period.end(copy, [None], grown=0))
    for clock[0], one in zip((3.0, 7.0), ended, strict=True):
        period.report(one, one.copy.read())
    assert [poll.seconds for poll in schedule.polls] == [3.0, 7.0 - max(3.0, launched)]
