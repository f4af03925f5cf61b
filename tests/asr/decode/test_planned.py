"""Submissions that follow a plan: what a disturbed recording says is what an undisturbed one says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.audio.inputs import Resumable
from forescribe.asr.audio.reading import open_audio
from forescribe.asr.decode import recording as recording_module
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.planned import Group, planned, restored
from forescribe.asr.decode.results import Decoded
from forescribe.asr.decode.transcriber import Outcome, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.segment import cut_plan
from forescribe.asr.segment.cut_plan import Plan, plan_of, planned_windows
from forescribe.asr.segment.windows import WindowOptions, WindowSpan
from forescribe.speculative.device import choose
from forescribe.speculative.errors import DecodingError
from forescribe.speculative.requests import Finish, Request, Result
from tests.asr.decode.ways import Ear, running
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders
from tests.asr.recordings import from_array, wav

RATE = 16_000


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory) -> Transcriber:
    folder = tmp_path_factory.mktemp("weights") / "target"
    whisper = load(Pair(folders.write(folder, max_target_positions=24)), choose("cpu"))
    return Transcriber(whisper, batch=4, gamma=2, detector=EnergyDetector())


@pytest.fixture
def session(transcriber) -> Iterator[Session]:
    with running(Session(transcriber.context)) as made:
        yield made


def recording(seconds: float) -> np.ndarray:
    """Something like speech, with a long silence in it."""
    rng, t = np.random.default_rng(0), np.arange(round(RATE * seconds))
    samples = 0.3 * np.sin(0.1 * t) + 0.1 * rng.standard_normal(len(t))
    samples[len(t) // 3 : len(t) // 3 + 5 * RATE] = 0
    return samples.astype(np.float32)


def run(
    session: Session, path: str, options: Options, plan: Plan, kept: Sequence[Group] = ()
) -> tuple[Outcome, dict[int, Group]]:
    ear, groups = Ear(), dict[int, Group]()

    def grouped(group: Group) -> None:
        assert group.k not in groups
        groups[group.k] = group

    session.enter(
        planned(session.context, path, options, ear, plan=plan, kept=kept, grouped=grouped)
    )
    outcome = ear.outcome()
    assert outcome is not None and outcome.error is None
    return outcome, groups


def said(outcome) -> dict:
    """The transcript, but for what depends on who shared the batch: time, drafts, the last digits."""
    told = outcome.transcript.to_dict()
    told["stats"] = {name: told["stats"][name] for name in ("windows", "tokens")}
    for segment in told["segments"]:
        for word in segment.get("words", ()):
            word.pop("sources", None)
    return told


def alike(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return one == pytest.approx(other, abs=1e-3)
    return one == other


@pytest.mark.parametrize("words", [False, True])
def test_a_disturbed_recording_says_what_an_undisturbed_one_says(
    session, transcriber, tmp_path, monkeypatch, words
) -> None:
    """Also in the audio's own cut, without any plan; and after any group, through JSON."""
    monkeypatch.setattr(cut_plan, "GROUP_SIZE", 2)
    path = str(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(wav(recording(110)))
    guards = Guards(temperatures=(0.0, 0.4))
    options = Options(words=words, guards=guards, replacements=(r"/\w/ => x",))
    with open_audio(path) as opened:
        plan = plan_of(opened.blocks(), transcriber.context.detector, options.windows)
    plan = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert len(plan.groups) >= 3 and any(not span.speech for span in plan.spans)
    whole, groups = run(session, path, options, plan)
    assert sorted(groups) == list(range(len(plan.groups)))
    assert any(window.changes for group in groups.values() for window in group.decoded)

    plain = Ear()
    session.submit(path, options, plain)
    if not words:  # timed in other batches
        assert alike(said(plain.outcome()), said(whole))

    for count in range(1, len(plan.groups) + 1):
        kept = [Group.from_dict(json.loads(json.dumps(groups[k].to_dict()))) for k in range(count)]
        for group in kept:  # all that is told, but for what a reader saw at once
            assert group.to_dict() == {**groups[group.k].to_dict(), "segments": []}
        rest, further = run(session, path, options, plan, kept)
        assert sorted(further) == list(range(count, len(plan.groups)))
        assert alike(said(rest), said(whole))


@pytest.mark.failing_drafts
def test_a_group_tells_that_drafts_have_failed() -> None:
    fault = DecodingError("drafting", RuntimeError("planted"))
    result = Result(Request((0,)), (), (), (), Finish.STOP, 0, 0, 0, draft_error=fault)
    group = Group((Decoded(0, 0, RATE, "en", result, ()),), (None,), "en", 1.0)
    kept = Group.from_dict(json.loads(json.dumps(group.to_dict())))
    assert str(kept.decoded[0].result.draft_error) == str(fault)


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    spoken=st.lists(st.booleans(), min_size=12, max_size=12),
    block=st.integers(1, 700),
    skipped=st.sets(st.integers(0, 11)),
)
def test_windows_of_a_plan_hold_their_own_samples(lengths, spoken, block, skipped) -> None:
    edges = np.cumsum([0, *lengths])
    pairs = zip(edges, edges[1:], strict=False)
    spans = [
        WindowSpan(int(a), int(b), s, ((int(a), int(b)),) * s)
        for (a, b), s in zip(pairs, spoken, strict=False)
    ]
    samples = np.arange(edges[-1], dtype=np.float32)
    blocks = [samples[at : at + block] for at in range(0, len(samples), block)]
    windows = list(planned_windows(blocks, spans, frozenset(skipped)))
    assert [w.index for w in windows] == [i for i in range(len(spans)) if i not in skipped]
    for window in windows:
        start, end, speech, *_ = spans[window.index]
        assert window.span == spans[window.index]
        assert window.samples.tolist() == (samples[start:end].tolist() if speech else [])


@pytest.mark.parametrize("length", [99, 101])
def test_another_recording_is_not_taken_for_the_planned_one(length) -> None:
    with pytest.raises(ValueError, match="ends at sample 99, before|longer than the 100 samples"):
        list(planned_windows([np.zeros(length, np.float32)], [WindowSpan(0, 100, True)]))


def test_a_stored_plan_keeps_its_groups(monkeypatch) -> None:
    """Whatever the size of groups is in the version that reads it: kept groups are numbered by it."""
    spans = tuple(WindowSpan(i, i + 1, True) for i in range(10))
    stored = json.loads(json.dumps(Plan(spans, group_size=3).to_dict()))
    monkeypatch.setattr(cut_plan, "GROUP_SIZE", 2)
    assert [len(group) for group in Plan.from_dict(stored).groups] == [3, 3, 3, 1]
    recording = from_array(np.zeros(RATE * 3))
    assert plan_of(recording.blocks(), EnergyDetector(), WindowOptions()).group_size == 2


# In a call, without a plan: recordings that an interrupted run has begun


def begun(transcriber, tmp_path, options, after: int, name: str = "a.wav") -> Resumable:
    """A recording of which a call is closed after so many windows."""
    path = tmp_path / name
    path.write_bytes(wav(recording(110)))
    file = Resumable(str(path), tmp_path / f"{name}.windows", "this")
    seen: list[object] = []

    def hook(progress: object) -> None:
        seen.append(progress)
        if len(seen) > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(transcriber.transcribe([file], options, hook))
    return file


@pytest.mark.parametrize(("words", "readers", "after"), [(False, 0, 2), (True, 0, 6), (True, 1, 4)])
def test_a_call_goes_on_with_a_recording_that_was_interrupted(
    transcriber, tmp_path, words, readers, after
) -> None:
    options = Options(words=words, guards=Guards(temperatures=(0.0, 0.4)))
    file = begun(transcriber, tmp_path, options, after)
    kept = restored(file.windows()).decoded  # whole windows, some of which end in parts
    assert 0 < len(kept) <= after + 1
    with file.kept.open("ab") as lines:
        lines.write(b'{"of": "this", "k": 99, "windo')  # killed while it wrote
    told: list[float] = []
    made = transcriber.with_readers(readers)
    (outcome,) = made.transcribe([file], options, lambda progress: told.append(progress.done_s))
    (plain,) = transcriber.transcribe([file.path], options)
    assert alike(said(outcome), said(plain))
    assert len(told) == plain.transcript.stats["windows"] - len(kept)  # no others are decoded


def test_what_was_kept_of_another_content_is_not_taken(transcriber, tmp_path) -> None:
    options = Options(guards=Guards(temperatures=(0.0,)))
    file = begun(transcriber, tmp_path, options, 4)
    kept = restored(file.windows()).decoded
    assert kept and len(kept) >= len(file.windows())
    assert replace(file, of="that").windows() == []
    for line in ('{"of": "this", "k": 0}', '{"of": "this", "k": 1, "windows": [3]}', "[]", "7"):
        with file.kept.open("a") as lines:
            lines.write(f"{line}\n")
    assert len(restored(file.windows()).decoded) == len(kept)


def test_windows_that_an_earlier_run_has_cut_elsewhere_are_refused(transcriber, tmp_path) -> None:
    options = Options(guards=Guards(temperatures=(0.0,)))
    file = begun(transcriber, tmp_path, options, 4)
    other = replace(options, vad=False)
    (outcome,) = transcriber.transcribe([file], other)
    assert "an earlier run has cut it elsewhere: --overwrite" in str(outcome.error)


def test_a_window_that_failed_is_decoded_again(transcriber, tmp_path, monkeypatch) -> None:
    """Its reason may pass; and a recording all of whose windows fail is no silent one the next time."""
    path = tmp_path / "a.wav"
    path.write_bytes(wav(recording(110)))
    file = Resumable(str(path), tmp_path / "a.windows", "this")
    options = Options(guards=Guards(temperatures=(0.0,)))
    broken = monkeypatch.context()
    with broken as patch:
        patch.setattr(recording_module, "decoded_of", lambda *_: 1 / 0)
        (outcome,) = transcriber.transcribe([file], options)
    assert outcome.error is not None and file.windows() == []
    (outcome,) = transcriber.transcribe([file], options)
    (plain,) = transcriber.transcribe([file.path], options)
    assert alike(said(outcome), said(plain))


def test_a_disk_that_is_full_costs_a_resumption_and_no_recording(transcriber, tmp_path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav(recording(70)))
    file = Resumable(str(path), tmp_path / "none" / "a.windows", "this")
    (outcome,) = transcriber.transcribe([file], Options(guards=Guards(temperatures=(0.0,))))
    assert outcome.error is None and file.windows() == []
