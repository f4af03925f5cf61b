"""Folders become a pair; what is no pair is refused in one line that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import CapacityError, ModelError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.model.whisper import Whisper
from forescribe.asr.words.timing import alignment_heads
from forescribe.speculative.device import Device, choose
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.plain import PlainWhisper
from forescribe.speculative.models.weights import encoder_of
from forescribe.speculative.native import adapters
from tests.asr.model import folders

CPU = choose("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def copy(target, tmp_path) -> Path:
    """A folder to spoil."""
    return shutil.copytree(target, tmp_path / "copy")


def features(windows: int) -> torch.Tensor:
    return torch.randn(windows, 80, 3000, generator=torch.Generator().manual_seed(0))


def test_a_target_alone_has_no_draft(target) -> None:
    whisper = load(Pair(target), CPU)
    assert not whisper.drafts and not whisper.shared_encoder
    assert whisper.tokens.languages.keys() == set(folders.CODES)
    assert not whisper.target.training
    (encoder_states,) = whisper.encode(features(1))
    assert encoder_states.target.shape == (1500, 16) and encoder_states.draft is None


@pytest.mark.parametrize("kind", ["distilled", "decoder only", "own encoder"])
def test_a_draft_hears_through_the_targets_encoder_unless_its_own_differs(
    target, tmp_path, kind
) -> None:
    draft = {
        "distilled": lambda: folders.write_distilled(tmp_path / "draft", target),
        "decoder only": lambda: folders.write_decoder_only(tmp_path / "draft"),
        "own encoder": lambda: folders.write(tmp_path / "draft", layers=1, seed=3),
    }[kind]()
    whisper = load(Pair(target, draft), CPU)
    assert whisper.shared_encoder == (kind != "own encoder")
    encoder = encoder_of(whisper.drafts[0].model)
    assert (encoder is None) == (kind == "decoder only")
    if kind == "distilled":
        assert encoder is encoder_of(whisper.target)  # one copy in memory
    for states in whisper.encode(features(2)):
        assert states.draft is not None
        assert states.draft.allclose(states.target) == whisper.shared_encoder


def test_weights_rounded_to_bfloat16_compute_in_float32(target) -> None:
    lean = ModelEngine.LEAN  # whose modules keep their weights
    rounded = load(Pair(target), Device("cpu", torch.float32, weights=torch.bfloat16), engine=lean)
    assert rounded.encode(features(1))[0].target.dtype == torch.float32
    exact = load(Pair(target), CPU, engine=lean).target.state_dict()
    assert any(not torch.equal(w, exact[n]) for n, w in rounded.target.state_dict().items())
    for name, weight in rounded.target.state_dict().items():
        assert torch.equal(weight, exact[name].to(torch.bfloat16).float()), name


def test_languages_are_heard_as_transformers_hears_them(target) -> None:
    whisper = load(Pair(target), CPU)
    heard = whisper.detect_language(whisper.encode(features(3)))
    theirs = load(Pair(target), CPU, modules=True).target.detect_language(
        input_features=features(3)
    )
    codes = {token: code for code, token in whisper.tokens.languages.items()}
    assert [code for code, _ in heard] == [codes[int(token)] for token in theirs]
    assert all(1 / 3 <= chance <= 1 for _, chance in heard)


def test_an_english_only_model_hears_english(target) -> None:
    whisper = load(Pair(target), CPU)
    english = Whisper(
        whisper.target,
        (),
        whisper.tokenizer,
        whisper.extractors,
        type(whisper.tokens)(256, 257, 266, 265, {}, {}, None),
        whisper.pair,
        CPU,
    )
    assert english.detect_language([EncoderStates(torch.zeros(1500, 16))]) == [("en", 1.0)]


def refusal(pair: Pair) -> str:
    """The one line."""
    with pytest.raises(ModelError) as caught:
        load(pair, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_draft_with_more_tokens_never_proposes_those(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "wide", layers=1, vocab_size=1800)
    (loaded,) = load(Pair(target, draft), CPU).drafts
    assert loaded.token_map is not None
    assert loaded.token_map.to_draft == tuple(range(1768))
    assert loaded.token_map.partners == tuple(range(1768))


def test_a_draft_with_two_pieces_exchanged_is_translated(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "draft", layers=1)
    path = draft / "tokenizer.json"
    data = json.loads(path.read_text())
    pieces = data["model"]["vocab"]
    a, b = pieces["a"], pieces["b"]
    pieces["a"], pieces["b"] = b, a
    path.write_text(json.dumps(data))
    (loaded,) = load(Pair(target, draft), CPU).drafts
    assert loaded.token_map is not None
    moved = [i for i, own in enumerate(loaded.token_map.to_draft) if own != i]
    assert moved == sorted((a, b)) and loaded.token_map.to_draft[a] == b
    (same,) = load(Pair(target, folders.write(tmp_path / "same", layers=1)), CPU).drafts
    assert same.token_map is None


def test_a_draft_with_other_texts_is_refused_by_the_count(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "draft", layers=1)
    path = draft / "tokenizer.json"
    data = json.loads(path.read_text())
    pieces = data["model"]["vocab"]
    data["model"]["vocab"] = {c if c < "a" else f"{c}-": i for c, i in pieces.items()}
    path.write_text(json.dumps(data))
    message = refusal(Pair(target, draft))
    kept = sum(c < "a" for c in pieces)
    assert f"they share {kept} of 256 text tokens" in message
    assert str(draft) in message and str(target) in message and message.endswith("--draft none")


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Spoil = Callable[[Path], object]


def shard(folder: Path) -> None:
    """The same weights in two files, as large checkpoints have them."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    halves = {1: names[: len(names) // 2], 2: names[len(names) // 2 :]}
    places = {}
    for number, half in halves.items():
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({n: weights[n] for n in half}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(half, file)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def forget(path: Path, key: str) -> None:
    values = json.loads(path.read_text())
    values.pop(key, None)
    path.write_text(json.dumps(values))


def rename(folder: Path, token: str) -> None:
    """A tokenizer that knows a special token by another name."""
    for path in folder.glob("tokenizer*.json"):
        path.write_text(path.read_text().replace(token, "<|somethingelse|>"))


def write(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def cut(name: str, end: int | None) -> Spoil:
    def spoil(folder: Path) -> None:
        if not (folder / name).exists():
            shard(folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:end])

    return spoil


def remove(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        if not (folder / name).exists():
            shard(folder)
        (folder / name).unlink()

    return spoil


def configure(**values: object) -> Spoil:
    return lambda folder: change(folder / "config.json", **values)


def generate(**values: object) -> Spoil:
    return lambda folder: change(folder / "generation_config.json", **values)


def lose_a_layer(folder: Path) -> None:
    weights = folder / WEIGHTS
    kept = {k: v for k, v in load_file(weights).items() if "decoder.layers.1" not in k}
    save_file(kept, weights, metadata={"format": "pt"})


def lose_the_start(folder: Path) -> None:
    change(folder / "generation_config.json", decoder_start_token_id=None)
    forget(folder / "config.json", "decoder_start_token_id")
    rename(folder, "<|startoftranscript|>")


def lose_timestamps(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    rename(folder, "<|notimestamps|>")


DAMAGED = "is damaged or not complete"
LAST = "model-00002-of-00002.safetensors"
SPOILT: dict[str, tuple[Spoil, str]] = {
    "truncated weights": (cut(WEIGHTS, 1000), f"{WEIGHTS} {DAMAGED}"),
    "empty weights": (cut(WEIGHTS, 0), f"{WEIGHTS} {DAMAGED}"),
    "a shard lost": (remove(LAST), f"holds no {LAST}, which {INDEX}"),
    "a shard cut": (cut(LAST, -50), f"{LAST} {DAMAGED}"),
    "a broken index": (cut(INDEX, 1), f"holds no weights: {INDEX} names none"),
    "start nowhere": (lose_the_start, "has no decoder_start_token_id"),
    "start of another": (
        generate(decoder_start_token_id=256),
        "says 256 for <|startoftranscript|>, its tokenizer 257",
    ),
    "a token too many": (
        generate(lang_to_id={"<|en|>": 99999}),
        "has the special token 99999, and its vocabulary the ids 0 to 1767",
    ),
    "other mel bins": (
        lambda folder: WhisperFeatureExtractor(feature_size=128).save_pretrained(folder),
        "makes 128 mel bins of 3000 frames, its encoder reads 80 of 3000",
    ),
    "a layer lost": (lose_a_layer, "lack model.decoder.layers.1"),
    "a layer too many": (configure(decoder_layers=3), "lack model.decoder.layers.2"),
    "a layer unread": (
        configure(decoder_layers=1),
        "layers.1.encoder_attn.k_proj.weight, a layer more",
    ),
    "a million layers": (configure(decoder_layers=10**6), "1000000 layers of width 16, more than"),
    "heads of no width": (
        configure(encoder_attention_heads=3),
        "3 attention heads for a width of 16",
    ),
    "other shapes": (configure(d_model=32), "another shape than its config.json says"),
    "not a whisper": (configure(model_type="bert"), "'bert'"),
    "quantised": (configure(quantization_config={"a": 1}), "its weights are quantised"),
    "broken config": (write("config.json", "{"), "config.json"),
    "wrong type in config": (configure(d_model="16"), "its config.json says d_model '16'"),
    "an unknown activation": (configure(activation_function="x"), "cannot be loaded as a Whisper"),
    "no tokenizer": (remove("tokenizer.json"), "lacks tokenizer.json"),
    "broken tokenizer": (write("tokenizer.json", "{}"), "no usable tokenizer"),
    "cut tokenizer": (cut("tokenizer.json", 500), "tokenizer.json is damaged"),
    "no features": (remove("preprocessor_config.json"), "lacks preprocessor_config.json"),
    "no generation config": (lose_timestamps, "no_timestamps_token_id"),
    "no weights": (remove(WEIGHTS), "holds no weights"),
    "no config": (remove("config.json"), "holds no config.json"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_folder_is_refused_in_one_line(copy, how, capfd) -> None:
    spoil, said = SPOILT[how]
    spoil(copy)
    message = refusal(Pair(copy))
    assert str(copy) in message and said in message
    assert len(message) < 400
    assert capfd.readouterr() == ("", "")  # and no report beside it


def test_shards_and_a_new_processor_file_are_read(copy) -> None:
    """As newer transformers save: no preprocessor_config.json, one `processor_config.json`."""
    shard(copy)
    old = copy / "preprocessor_config.json"
    (copy / "processor_config.json").write_text(
        json.dumps(
            {
                "processor_class": "WhisperProcessor",
                "feature_extractor": json.loads(old.read_text()),
            }
        )
    )
    old.unlink()
    assert load(Pair(copy), CPU).extractors[0].feature_size == 80


@pytest.mark.parametrize("ends", [[256], [256, 300]], ids=str)
def test_several_tokens_may_end_a_text(copy, ends) -> None:
    for file in ("config.json", "generation_config.json"):
        change(copy / file, eos_token_id=ends)
    whisper = load(Pair(copy, copy), CPU)
    assert whisper.tokens.ends == tuple(ends) and whisper.tokens.end == 256
    made = Transcriber(whisper, gamma=2)
    assert made.engine._shared.eos.tolist() == ends


def test_a_folder_without_generation_config_writes_what_transformers_writes(copy) -> None:
    """Older fine-tunes keep its settings in config.json; languages and timestamps are the tokenizer's."""
    (copy / "generation_config.json").unlink()
    prompt = [258, 262, 266]  # <|en|><|transcribe|><|notimestamps|>
    change(
        copy / "config.json",
        suppress_tokens=[7, 11, 220],
        begin_suppress_tokens=[32, 256],
        forced_decoder_ids=[[i, token] for i, token in enumerate(prompt, 1)],
        max_length=64,
    )
    made = Transcriber(load(Pair(copy), CPU), gamma=0, beam_size=1)
    assert made.whisper.tokens.languages.keys() == set(folders.CODES)
    samples = np.random.default_rng(0).normal(0, 0.1, 480_000).astype(np.float32)
    options = Options("en", timestamps=False, vad=False, keep_encoder_states=True)
    (outcome,) = made.transcribe([(samples, 16_000)], options)
    (part,) = outcome.decoded
    model = WhisperForConditionalGeneration.from_pretrained(copy).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(copy)
    heard = extractor(samples, sampling_rate=16_000, return_tensors="pt")
    with torch.inference_mode():
        theirs = model.generate(heard.input_features, num_beams=1, do_sample=False)[0].tolist()
    written = [token for token in part.result.tokens if token != 256]
    assert len(written) > 10
    assert written == [
        t for t in theirs[theirs.index(266) + 1 if 266 in theirs else 0 :] if t != 256
    ]
    (outcome,) = made.transcribe([(samples, 16_000)], Options(vad=False))
    assert outcome.transcript.segments and outcome.transcript.language in folders.CODES


def test_where_texts_start_and_end_is_also_asked_of_the_tokenizer(copy) -> None:
    for file in ("config.json", "generation_config.json"):
        forget(copy / file, "decoder_start_token_id")
        change(copy / file, eos_token_id=None)
    tokens = load(Pair(copy, copy), CPU).tokens
    assert (tokens.start, tokens.ends) == (257, (256,))


def test_a_decoder_that_cannot_read_the_targets_states_is_refused(target, tmp_path):
    draft = folders.write_decoder_only(tmp_path / "draft", d_model=24)
    message = refusal(Pair(target, draft))
    assert f"{draft} cannot draft for {target}" in message
    assert "reads encoder states of (1500, 24), its target's are (1500, 16)" in message
    assert message.endswith("--draft none")


def test_a_draft_that_hears_other_features_needs_their_extractor(target, tmp_path) -> None:
    bins = folders.write(tmp_path / "bins", layers=1, num_mel_bins=128)
    assert "makes 80 mel bins of 3000 frames, its encoder reads 128" in refusal(Pair(target, bins))
    WhisperFeatureExtractor(feature_size=128).save_pretrained(bins)
    whisper = load(Pair(target, bins), CPU)
    assert [e.feature_size for e in whisper.extractors] == [80, 128]
    assert whisper.drafts[0].features == 1
    (states,) = whisper.encode(features(1), torch.randn(1, 128, 3000))
    assert states.drafts[0].shape == states.target.shape
    with pytest.raises(ValueError, match="1 features; these models read 2"):
        whisper.encode(features(1))


def test_a_draft_of_shorter_windows_or_texts_is_refused(target, tmp_path) -> None:
    short = folders.write(tmp_path / "short", layers=1, max_source_positions=750)
    assert "reads encoder states of (750, 16), its target's are (1500, 16)" in refusal(
        Pair(target, short)
    )
    few = folders.write(tmp_path / "few", layers=1, max_target_positions=32)
    assert "40 and 32 positions" in refusal(Pair(target, few))


@pytest.fixture
def no_kernels(monkeypatch) -> None:
    monkeypatch.setattr(adapters, "missing", lambda: "they are not compiled; build them with: ...")


def test_without_kernels_auto_is_lean_and_native_is_refused_with_the_command(
    target, no_kernels
) -> None:
    assert load(Pair(target), CPU).engine == "lean"
    with pytest.raises(ModelError, match="not compiled; build them with"):
        load(Pair(target), CPU, engine=ModelEngine.NATIVE)


def test_a_spoilt_draft_is_named_as_the_draft(target, copy) -> None:
    (copy / WEIGHTS).write_bytes(b"")
    assert refusal(Pair(target, copy)).startswith(f"--draft {copy}")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not enough memory: 9 GB")]
)
def test_a_device_without_room_is_said_in_one_line(target, monkeypatch, error) -> None:
    def full(*_, **__):
        raise error

    monkeypatch.setattr(PlainWhisper, "take", full)
    with pytest.raises(CapacityError, match=r"cpu has no room .* --model .*target"):
        load(Pair(target), CPU)


@pytest.mark.parametrize("heads", [[[0, 1], [2, 0]], [[0, 99]]])
def test_alignment_heads_of_another_model_are_dropped_with_a_warning(
    tmp_path, caplog, heads
) -> None:
    folder = folders.write(tmp_path / "distilled")
    change(folder / "generation_config.json", alignment_heads=heads)
    whisper = load(Pair(folder), CPU)
    assert "its alignment_heads are of a model with more layers or heads" in caplog.text
    assert alignment_heads(whisper) == [(1, 0), (1, 1)]
