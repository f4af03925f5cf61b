"""Long recordings in blocks: the same persons, the same turns, bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
from forescribe.diarize.diarizer import Bounds
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound

TALK = sound((1, 0.5), (0.5, 0), (1.5, 0.1), (2, 0.5), (1, 0), (2, 0.1), (0.7, 0.5))


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(5, 40))
def test_blocks_are_the_pieces_and_no_block_is_too_long(lengths: list[int], block: int) -> None:
    whole = np.arange(sum(lengths), dtype=np.float32)
    pieces = np.split(whole, np.cumsum(lengths)[:-1]) if lengths else []
    found = list(split_into_blocks(pieces, block=block, slack=block // 4))
    assert np.array_equal(np.concatenate([whole[:0], *found]), whole)
    assert all(len(part) == block for part in found[:-1])
    assert all(0 < len(part) <= block + block // 4 for part in found)


@pytest.mark.parametrize("block", [RATE, 2 * RATE, 30 * RATE])
def test_blocks_give_what_the_whole_gives(block: int) -> None:
    whole = LevelDiarizer().diarize(TALK)
    engine = LevelDiarizer()
    parts = split_into_blocks([TALK], block=block, slack=0)
    found = diarize_blocks(engine, parts, sample_count=len(TALK))
    assert found.regular == whole.regular and found.exclusive == whole.exclusive
    assert found.sample_count == len(TALK) and max(engine.calls) <= block
    assert [voice.samples for voice in found.voices] == [voice.samples for voice in whole.voices]


def test_only_the_upper_bound_holds_in_a_block_and_both_in_the_whole() -> None:
    engine = LevelDiarizer()
    parts = split_into_blocks([TALK], block=2 * RATE, slack=0)
    found = diarize_blocks(engine, parts, Bounds(exactly=20), sample_count=len(TALK))
    assert set(engine.bounds) == {Bounds(at_most=20)}
    assert [notice.code for notice in found.warnings] == ["speaker_count"]


def test_a_recording_without_a_sample_has_no_turns() -> None:
    found = diarize_blocks(LevelDiarizer(), [])
    assert not found.regular and found.sample_count == 0


def test_progress_grows_to_the_whole_and_its_hook_cancels() -> None:
    seen: list[float] = []
    parts = split_into_blocks([TALK], block=2 * RATE, slack=0)
    diarize_blocks(
        LevelDiarizer(), parts, hook=lambda _, done: seen.append(done), sample_count=len(TALK)
    )
    assert seen == sorted(seen) and seen[-1] == 1.0

    def stop(step: str, done: float) -> None:
        if done > 0.3:
            raise InterruptedError

    engine = LevelDiarizer()
    with pytest.raises(InterruptedError):
        diarize_blocks(
            engine,
            split_into_blocks([TALK], block=2 * RATE, slack=0),
            hook=stop,
            sample_count=len(TALK),
        )
    assert len(engine.calls) < 3
