"""Word times: monotone, inside their window, joined to the segment's text; the path is the right one."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.words import timing
from forescribe.asr.words.timing import (
    Utterance,
    alignment_heads,
    attention,
    boundaries,
    medians,
    token_times,
)
from forescribe.speculative import choose
from forescribe.speculative.model_engines import ModelEngine
from tests.asr.model import folders
from tests.speculative.graphs.fake_hpu import HPU

RATE = 16000


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    target = folders.write(tmp_path_factory.mktemp("pair") / "target")
    return load(Pair(target), choose("cpu"), network=False)


@pytest.mark.parametrize("timestamps", [True, False])
def test_words_are_monotone_inside_their_segments_window_and_joined_to_its_text(
    whisper, tmp_path, timestamps
):
    noise = np.random.default_rng(0).standard_normal(47 * RATE) * 0.1
    soundfile.write(tmp_path / "a.wav", noise.astype(np.float32), RATE)
    transcriber = Transcriber(whisper, batch=2, gamma=0)
    options = Options(language="en", vad=False, words=True, timestamps=timestamps)
    (outcome,) = transcriber.transcribe([str(tmp_path / "a.wav")], options)
    transcript = outcome.transcript
    assert len(transcript.segments) > 1
    windows = {s.window: s for s in transcript.segments}
    for window in windows:
        timed = [w for s in transcript.segments if s.window == window for w in s.words]
        assert len(timed) >= 1
        edges = [t for w in timed for t in (w.start_sample, w.end_sample)]
        assert edges == sorted(edges)
        ends = [s.window_sample for s in windows.values() if s.window > window]
        assert windows[window].window_sample <= edges[0]
        assert edges[-1] <= min(ends, default=47 * RATE)
        assert all(0 <= w.probability <= 1 for w in timed)
    for segment in transcript.segments:
        assert "".join(w.text for w in segment.words) == segment.text
    assert all(d.encoder_states is None for d in outcome.decoded)


@pytest.mark.nightly  # librosa compiles for half a minute
@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32))
def test_the_path_is_that_of_librosa(rows, frames, seed):
    from librosa.sequence import dtw

    costs = np.random.default_rng(seed).standard_normal((rows, frames)).astype(np.float32)
    _, path = dtw(C=costs.astype(np.float64), backtrack=True)
    expected = [min(frame for at, frame in path if at == row) for row in range(rows)]
    found = boundaries(torch.from_numpy(-costs), rows - 1, frames * 320)
    assert [at // 320 for at in found] == expected


@given(st.integers(1, 5), st.integers(7, 30), st.integers(1, 8), st.integers(0, 2**32))
def test_medians_are_those_of_torch(rows, count, kinds, seed):
    """With many equal numbers too."""
    values = torch.from_numpy(np.random.default_rng(seed).integers(0, kinds, (rows, count))).float()
    assert torch.equal(medians(values), values.unfold(-1, 7, 1).median(-1).values)


@pytest.mark.native
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 200), st.integers(0, 2**32), st.data())
def test_kernels_sharpen_and_align_to_the_bits_of_torch_and_numpy(heads, rows, frames, seed, data):
    """Maps of few frames too, which the kernels lack, and attention that is even or to one frame alone."""
    first = data.draw(st.integers(0, rows - 1))
    span = range(first, data.draw(st.integers(first + 1, rows)))
    scale = data.draw(st.sampled_from([0.0, 1.0, 8.0, 300.0]))
    scores = scale * torch.randn(
        (heads, rows, frames), generator=torch.Generator().manual_seed(seed)
    )
    maps = timing._sharpened(scores, span)
    starts = boundaries(maps.mean(0), len(span) - 1, frames * 320)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timing, "_kernels", lambda: None)
        assert torch.equal(maps, timing._sharpened(scores, span))
        assert starts == boundaries(maps.mean(0), len(span) - 1, frames * 320)


def test_heads_are_those_of_the_generation_config_or_the_upper_half(whisper, monkeypatch):
    assert alignment_heads(whisper) == [(1, 0), (1, 1)]
    config = whisper.target.generation_config
    monkeypatch.setattr(config, "alignment_heads", [[0, 1], [1, 0]], raising=False)
    assert alignment_heads(whisper) == [(0, 1), (1, 0)]


def test_several_windows_at_once_give_what_each_gives_alone(whisper):
    tokens = whisper.tokenizer.encode(" some text", add_special_tokens=False)
    features = torch.randn(3, 80, 3000, generator=torch.Generator().manual_seed(0))
    encoded = whisper.encode(features)
    prompt = whisper.tokens.prompt("en", "transcribe", timestamps=False)
    work = [
        Utterance(encoder_states, prompt, tuple(tokens[: 4 + n]), (10 + n) * RATE)
        for n, encoder_states in enumerate(encoded)
    ]
    together = token_times(whisper, work)
    for one, times in zip(work, together, strict=True):
        (alone,) = token_times(whisper, [one])
        assert alone.boundaries == times.boundaries
        assert alone.probabilities == pytest.approx(times.probabilities, abs=1e-5)
        assert len(times.boundaries) == len(one.tokens) + 1


def test_where_shapes_are_compiled_those_of_texts_are_few(whisper, monkeypatch):
    gaudi = load(Pair(whisper.pair.target), HPU, network=False, engine=ModelEngine.LEAN)
    plain = load(Pair(whisper.pair.target), choose("cpu"), network=False, engine=ModelEngine.LEAN)
    shapes, forward = set(), gaudi.target.model.decoder.forward

    def watched(**given):
        shapes.add((given["input_ids"].shape, given["encoder_hidden_states"].shape[0]))
        return forward(**given)

    monkeypatch.setattr(gaudi.target.model.decoder, "forward", watched)
    encoded = plain.encode(torch.ones(3, 80, 3000))
    prompt = plain.tokens.prompt("en", "transcribe", timestamps=False)
    lengths = (*range(20, 28), 5, 9)
    texts = [Utterance(encoded[n % 3], prompt, tuple(range(n)), 9 * RATE) for n in lengths]
    for first, count in ((0, 1), (1, 2), (3, 3), (6, 4)):
        some = texts[first : first + count]
        for ours, theirs in zip(token_times(gaudi, some), token_times(plain, some), strict=True):
            assert ours.boundaries == theirs.boundaries
            assert ours.probabilities == pytest.approx(theirs.probabilities, rel=1e-4)
    assert {rows for (rows, _), _ in shapes} == {1, 2, 4} and len(shapes) == 3


@pytest.mark.native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_and_modules_read_the_same_attention_and_languages(whisper, monkeypatch, dtype):
    place = choose("cpu", dtype)
    native = load(Pair(whisper.pair.target), place, network=False, engine=ModelEngine.NATIVE)
    modules = load(Pair(whisper.pair.target), place, network=False, engine=ModelEngine.LEAN)
    monkeypatch.setattr("forescribe.speculative.native.adapters.PART", 7)
    config, random = native.target.config, np.random.default_rng(0)
    features = torch.randn((2, config.num_mel_bins, 2 * config.max_source_positions))
    encoded = modules.encode(features)
    prompt = native.tokens.prompt("en", "transcribe", timestamps=False)
    lengths = (0, 1, 30)
    texts = [
        Utterance(encoded[i % 2], prompt, tuple(map(int, random.integers(0, 99, n))), 9 * RATE)
        for i, n in enumerate(lengths)
    ]
    heads = alignment_heads(native)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == "float32" else {"rtol": 0.1, "atol": 0.1}
    read = [attention(each, texts, heads) for each in (native, modules)]
    for ours, theirs, n in zip(*read, lengths, strict=True):
        assert ours.maps.shape == (len(heads), n + 1, 450)
        # Differences of sharpened maps are those of scores, divided by a deviation over the tokens.
        assert (ours.maps - theirs.maps).square().mean() <= 0.01 * theirs.maps.square().mean()
        assert ours.probabilities == pytest.approx(theirs.probabilities, rel=10 * close["rtol"])
    told = [each.detect_language(encoded) for each in (native, modules)]
    for ours, theirs in zip(*told, strict=True):
        assert ours[1] == pytest.approx(theirs[1], rel=close["rtol"])
        assert dtype != "float32" or ours[0] == theirs[0]
