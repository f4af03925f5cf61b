"""Our own reading of a folder against transformers': the same models, tokens and features, or none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperFeatureExtractor

from forescribe.asr.audio.features import Extractor
from forescribe.asr.errors import ModelError
from forescribe.asr.model.checkpoint import (
    _DEFAULTS,
    plain_config,
    plain_model,
    read_extractor,
    read_model,
    read_tokenizer,
)
from forescribe.asr.model.comparisons import Comparisons
from forescribe.asr.model.tokenizer import WhisperTokens
from forescribe.speculative.device import choose
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.plain import MANY, PlainWhisper

from . import folders

ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "bundled" / "tiny.en"
CPU = choose("cpu")

TEXTS = (
    " The quick brown fox, at 10:30 for $1,250.",
    "Zoë’s naïve café — 東京で、🙂🙃",
    "don't  two  spaces\n\nand\tlines <|0.00|> <|en|> <|endoftext|>",
    "",
    "\u00a0\u200b e\u0301",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("doors") / "target")


def both(folder: Path) -> tuple[Any, Any]:
    """The model by our door and by transformers'."""
    known = Comparisons(folder, CPU)
    return (
        read_model(folder, "model", CPU, ModelEngine.AUTO, known=known)[0],
        read_model(folder, "model", CPU, ModelEngine.AUTO, modules=True, known=known)[0],
    )


@pytest.mark.parametrize("bundled", [False, True], ids=["made", "bundled"])
@torch.inference_mode()
def test_weights_settings_and_states_are_to_the_bit_those_of_transformers(
    made: Path, bundled: bool
) -> None:
    ours, theirs = both(BUNDLED if bundled else made)
    assert isinstance(ours, PlainWhisper) and not isinstance(theirs, PlainWhisper)
    weights, expected = ours.state_dict(), theirs.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    for mine, other in (
        (ours.config, theirs.config),
        (ours.generation_config, theirs.generation_config),
    ):
        for name, value in vars(mine).items():
            assert getattr(other, name) == value, name
    config, random = ours.config, torch.Generator().manual_seed(0)
    frames = 2 * config.max_source_positions
    features = torch.randn((1, config.num_mel_bins, frames), generator=random)
    assert ours.model.encoder(features)[0].equal(theirs.model.encoder(features)[0])
    states = torch.randn((2, max(MANY, 600), config.d_model), generator=random)
    for length in (1, 3, 17, 40):  # with few queries attention is products, on CPUs
        tokens = torch.randint(config.vocab_size, (2, length), generator=random)
        mine, other = (
            m.model.decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)
            for m in (ours, theirs)
        )
        assert mine.last_hidden_state.equal(other.last_hidden_state), length


@pytest.mark.parametrize("bundled", [False, True], ids=["made", "bundled"])
def test_tokens_are_those_of_transformers(made: Path, bundled: bool) -> None:
    folder = BUNDLED if bundled else made
    config = plain_config(json.loads((folder / "config.json").read_text()))
    ours = read_tokenizer(folder, config)
    theirs = read_tokenizer(folder, config, modules=True)
    assert isinstance(ours, WhisperTokens) and not isinstance(theirs, WhisperTokens)
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(theirs)
    assert (ours.eos_token_id, ours.unk_token_id) == (theirs.eos_token_id, theirs.unk_token_id)
    assert {i: t.special for i, t in ours.added_tokens_decoder.items()} == {
        i: t.special for i, t in theirs.added_tokens_decoder.items()
    }
    for name in ("<|endoftext|>", "<|startofprev|>", "<|none of them|>"):
        assert ours.convert_tokens_to_ids(name) == theirs.convert_tokens_to_ids(name)
    license = (BUNDLED / "LICENSE").read_text(encoding="utf-8")
    for text in (*TEXTS, license):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False)
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
        assert ours.text(ids) == theirs.decode(ids, decode_with_timestamps=True) or "<|" in text
        for token in ids[:50]:
            assert ours.convert_ids_to_tokens(token) == theirs.convert_ids_to_tokens(token)


@pytest.mark.parametrize("mels", [80, 128])
def test_filters_are_to_the_bit_those_of_transformers(mels: int) -> None:
    ours, theirs = Extractor(feature_size=mels), WhisperFeatureExtractor(feature_size=mels)
    assert np.array_equal(ours.mel_filters, theirs.mel_filters)
    for name in ("n_samples", "nb_max_frames", "hop_length", "n_fft", "sampling_rate"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_what_a_configuration_leaves_out_is_what_transformers_takes_for_it() -> None:
    from transformers import WhisperConfig

    assert {name: getattr(WhisperConfig(), name) for name in _DEFAULTS} == _DEFAULTS


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _stating(file: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        stated = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(stated | values))

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("generation_config.json"),
        _without("model.safetensors"),
        _stating("config.json", model_type="llama"),
        _stating("config.json", quantization_config={"quant_method": "awq"}),
        _stating("config.json", tie_word_embeddings=False),
        _stating("config.json", activation_function="gelu_new"),
        _stating("config.json", num_hidden_layers=7),
        _stating("config.json", decoder_layers=7),
        _stating("config.json", d_model="16"),
        _stating("config.json", vocab_size=12),
        _stating("config.json", architectures=["WhisperForCausalLM"]),
    ],
)
def test_transformers_reads_other_models(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = folders.write(tmp_path / "target")
    assert plain_model(folder, "model", CPU) is not None
    change(folder)
    assert plain_model(folder, "model", CPU) is None


@pytest.mark.parametrize(
    "change",
    [
        _without("tokenizer.json"),
        _stating("tokenizer.json", normalizer={"type": "NFC"}),
        _stating("tokenizer_config.json", add_prefix_space=True),
        _stating("tokenizer_config.json", tokenizer_class="GPT2Tokenizer"),
        _stating("tokenizer_config.json", unk_token="<|beside the vocabulary|>"),
        _stating("tokenizer_config.json", additional_special_tokens=["<|beside it|>"]),
        _stating("tokenizer_config.json", added_tokens_decoder={"3": {"content": "<|en|>"}}),
    ],
)
def test_transformers_reads_other_tokenizers(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = folders.write(tmp_path / "target")
    assert WhisperTokens.read(folder) is not None
    change(folder)
    assert WhisperTokens.read(folder) is None


@pytest.mark.parametrize("size", [400.5, 0, "400"])
def test_features_of_no_size_are_refused_by_name(made: Path, tmp_path: Path, size: object) -> None:
    config = plain_config(json.loads((made / "config.json").read_text()))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"n_fft": size}))
    with pytest.raises(ModelError, match="no usable features: n_fft is"):
        read_extractor(tmp_path, config)


@pytest.mark.native
def test_a_transcript_with_word_times_needs_no_transformers(tmp_path: Path) -> None:
    sound, rate = soundfile.read(ROOT / "samples" / "memo.flac", frames=6 * 16_000)
    soundfile.write(tmp_path / "memo.flac", sound, rate)
    code = (
        "import sys\n"
        "from forescribe import Options, Transcriber\n"
        "made = Transcriber.load('tiny.en', device='cpu', network=False)\n"
        "(outcome,) = made.transcribe(sys.argv[1:], Options(words=True))\n"
        "assert outcome.transcript.segments[0].words\n"
        "print(*sorted({'transformers', 'sympy', 'triton', 'torch._dynamo'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "memo.flac")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
