"""Where the next window starts: equal to transformers' own rule for any answer that moves."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from forescribe.asr.decode.requests import previous_text
from forescribe.asr.decode.sequential import FRAMES_PER_STEP, advance
from forescribe.asr.model.tokens import SpecialTokens

SPECIAL = SpecialTokens(
    start=101,
    end=100,
    no_timestamps=110,
    no_speech=109,
    languages={"en": 102},
    tasks={"transcribe": 104, "translate": 103},
    previous=108,
)
ZERO = SPECIAL.timestamp_begin


@st.composite
def answers(draw) -> list[int]:
    """Text and timestamps in any order, times never falling, as Whisper's rules have it."""
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=24))
    times = iter(sorted(draw(st.lists(st.integers(0, 1500), min_size=24, max_size=24))))
    return [ZERO + next(times) if stamp else draw(st.integers(0, 99)) for stamp in kinds]


def theirs(tokens: list[int], frames: int) -> tuple[list[int], int]:
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[torch.tensor(tokens)],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=ZERO,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=FRAMES_PER_STEP,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    return [int(t) for s in segments for t in s["tokens"]], int(offset)


@given(answers(), st.integers(1, 3000))
def test_the_step_is_that_of_transformers(tokens, frames):
    kept, offset = theirs(tokens, frames)
    assume(offset > 0)  # theirs would hear the same window for ever
    step = advance([*tokens, SPECIAL.end], SPECIAL, frames)
    assert list(step.tokens) == kept
    assert step.frames == min(offset, frames)


def test_a_pair_that_does_not_move_takes_the_whole_window():
    step = advance([ZERO, ZERO, 5, 6], SPECIAL, 3000)
    assert (step.tokens, step.frames) == ((ZERO, ZERO, 5, 6), 3000)


def test_text_behind_the_last_pair_is_heard_again():
    step = advance([ZERO, 7, ZERO + 100, ZERO + 100, 8, 9], SPECIAL, 3000)
    assert (step.tokens, step.frames) == ((ZERO, 7, ZERO + 100, ZERO + 100), 200)


@given(answers())
def test_previous_text_writes_a_closing_pair_once(tokens):
    before = previous_text(tokens, SPECIAL)
    closing = len(tokens) > 2 and all(token >= ZERO for token in tokens[-2:])
    assert before == tuple(tokens[:-1] if closing else tokens)
