"""whisper.cpp's and openai-whisper's files: the same numbers under other names, nothing of damaged ones."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import WhisperTokenizer

from benchmarks.systems.ggml import dims_of, state_of, tokens_of, write_ggml
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ModelError
from forescribe.asr.model.conversion import converting, openai_formats, openai_models
from forescribe.asr.model.conversion.ctranslate2 import usable as converted_folder
from forescribe.asr.model.conversion.openai_formats import converted, published
from forescribe.asr.model.conversion.openai_models import (
    PUBLISHED,
    Published,
    from_ranks,
    special_tokens,
)
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair, locate
from forescribe.speculative.device import choose
from tests.asr.model.conversion.openai_files import write_pt
from tests.real import BASE, TINY, model, voice

CPU = choose("cpu")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    found.pop("proj_out.weight", None)
    return found


def half(values: torch.Tensor, name: str) -> torch.Tensor:
    """As whisper.cpp's converter rounds: matrices, not vectors and positions."""
    return values.half().float() if values.ndim > 1 and "embed_positions" not in name else values


@pytest.mark.parametrize("kind", ["f16", "f32", "pt"])
def test_a_conversion_is_the_model_that_the_file_was_made_of(original, tmp_path, kind) -> None:
    file = tmp_path / ("mine.pt" if kind == "pt" else "ggml-mine.bin")
    if kind == "pt":
        write_pt(original, file)
        (tmp_path / "tokenizer.json").write_text((original / "tokenizer.json").read_text())
    else:
        write_ggml(original, file, kind)
    made = locate(file)
    theirs, ours = weights(original), weights(made)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        exact = half(values, name) if kind == "f16" else values
        assert torch.equal(ours[name].float(), exact), name
    before, after = load(Pair(original), CPU), load(Pair(file), CPU)
    assert after.tokens.languages.keys() == {"en", "zh", "de"}
    assert after.tokens == before.tokens
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    for key in (
        "encoder_layers",
        "decoder_attention_heads",
        "max_target_positions",
        "eos_token_id",
    ):
        assert getattr(after.target.config, key) == getattr(before.target.config, key), key


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_quantised_numbers_are_those_that_the_blocks_stand_for(original, tmp_path, kind) -> None:
    pytest.importorskip("gguf", reason="quantised files are read by gguf: scripts/setup gguf")
    made = converted(write_ggml(original, tmp_path / "ggml-mine.bin", kind))
    name = "model.decoder.layers.0.fc1.weight"
    values, expected = weights(made)[name], weights(original)[name]
    step = expected.view(-1, 32).abs().amax(-1) / {"8": 127, "5": 15, "4": 7}[kind[1]]
    error = (values - expected).view(-1, 32).abs().amax(-1)
    assert (error <= 1.2 * step).all() and (error > 0).any()
    data = write_ggml(original, tmp_path / "again.bin", kind).read_bytes()
    at = data.index(b"decoder.blocks.0.mlp.0.weight") + len("decoder.blocks.0.mlp.0.weight")
    assert values.flatten()[:32].tolist() == block(data[at:], kind)


def block(data: bytes, kind: str) -> list[float]:
    """The numbers of one block, by ggml's definition (`dequantize_row_*`), in float32."""
    f = np.float32
    scale = f(np.frombuffer(data[:2], "<f2")[0])
    if kind == "Q8_0":
        return [float(f(q) * scale) for q in np.frombuffer(data[2:34], np.int8)]
    data = data[2:]
    least = f(0)
    if kind.endswith("1"):
        least, data = f(np.frombuffer(data[:2], "<f2")[0]), data[2:]
    high = 0
    if kind.startswith("Q5"):
        high, data = struct.unpack("<I", data[:4])[0], data[4:]
    digits = [byte & 15 for byte in data[:16]] + [byte >> 4 for byte in data[:16]]
    numbers = [digit | (high >> i & 1) << 4 for i, digit in enumerate(digits)]
    centre = 0 if kind.endswith("1") else {"Q5_0": 16, "Q4_0": 8}[kind]
    return [float(f(n - centre) * scale + least) for n in numbers]


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_numbers_of_k_quants_are_those_that_the_blocks_stand_for(wide, tmp_path, kind) -> None:
    pytest.importorskip("gguf", reason="quantised files are read by gguf: scripts/setup gguf")
    made = weights(converted(write_ggml(wide, tmp_path / "ggml-mine.bin", kind)))
    data = (tmp_path / "ggml-mine.bin").read_bytes()
    for theirs, ours in (("blocks.0.mlp.0", "layers.0.fc1"), ("token_embedding", "embed_tokens")):
        named = f"decoder.{theirs}.weight".encode()
        block = data[data.index(named) + len(named) :]
        expected = {"Q4_K": q4_k, "Q6_K": q6_k}[kind](block)
        values = made[f"model.decoder.{ours}.weight"].float().flatten()[:256]
        assert len(set(expected)) > 50
        assert values.tolist() == pytest.approx(expected, rel=1e-6)


def q4_k(data: bytes) -> list[float]:
    """The 256 numbers of a block, by ggml's `dequantize_row_q4_K`."""
    scale, least = np.frombuffer(data[:4], "<f2").astype(np.float32)
    packed, made = data[4:16], []
    for group in range(8):
        if group < 4:
            factor, offset = packed[group] & 63, packed[group + 4] & 63
        else:
            factor = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        for byte in data[16 + group // 2 * 32 :][:32]:
            digit = byte >> 4 if group % 2 else byte & 15
            made.append(float(scale * factor * digit - least * offset))
    return made


def q6_k(data: bytes) -> list[float]:
    """The 256 numbers of a block, by ggml's `dequantize_row_q6_K`."""
    scale = np.frombuffer(data[208:210], "<f2").astype(np.float32)[0]
    factors, made = np.frombuffer(data[192:208], np.int8), []
    for number in range(256):
        half, quarter, at = number // 128, number % 128 // 32, number % 32
        low = data[64 * half + 32 * (quarter % 2) + at] >> 4 * (quarter // 2) & 15
        high = data[128 + 32 * half + at] >> 2 * quarter & 3
        made.append(float(scale * factors[number // 16] * ((low | high << 4) - 32)))
    return made


def test_a_quantised_file_without_its_reader_says_what_to_install(
    original, tmp_path, monkeypatch
) -> None:
    file = write_ggml(original, tmp_path / "ggml-mine.bin", "f32")
    data = file.read_bytes()
    name = b"decoder.token_embedding.weight"
    at = data.index(name) - 8 - 4  # the number format precedes the two sizes
    file.write_bytes(data[:at] + struct.pack("<i", 8) + data[at + 4 :])
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ModelError, match=r"quantised \(decoder.token_embedding.weight\).* gguf"):
        converted(file)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.03, 0.3, 0.99])
@pytest.mark.parametrize("kind", ["ggml", "pt"])
def test_a_file_that_is_cut_off_is_refused(original, tmp_path, cache, kind, share) -> None:
    write = {"ggml": write_ggml, "pt": write_pt}[kind]
    file = write(original, tmp_path / "mine.bin")
    data = file.read_bytes()
    file.write_bytes(data[: round(share * len(data))])
    with pytest.raises(
        ModelError, match=r"mine\.bin is (damaged, not complete|no file of weights)"
    ):
        converted(file)
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": {"n_vocab": -1}}, "says n_vocab -1"),
        ({"dims": {"n_text_layer": 2**30}}, "says n_text_layer 1073741824"),
        ({"dims": {"n_text_layer": 3}}, "ends without decoder.blocks.2"),
        ({"dims": {"n_text_state": 64}}, "encoder has 32 numbers for a position, its decoder 64"),
        (
            {"dims": {"n_text_head": 7}},
            "says n_text_head 7; Whisper's states of 32 numbers have 2 heads",
        ),
        ({"dims": {"n_audio_head": 1}}, "says n_audio_head 1; .* have 2 heads"),
        ({"dims": {"n_audio_ctx": 1499}}, r"has the shape \[1500, 32\], not \[1499, 32\]"),
        ({"dims": {"n_vocab": 1769}}, r"decoder.token_embedding.weight has the shape"),
        ({"tokens": [b"a", b"b", b"cd"]}, "token 2 b'cd' is not made of earlier ones"),
        ({"tokens": [b"a", b"a"]}, "a token is there twice"),
        ({"tokens": [b"a", b"", b"b"]}, "token 1 has 0 bytes"),
        ({"tokens": [bytes([i % 256, i // 256]) for i in range(2000)]}, "claims 2000 tokens"),
        ({"tokens": [b"a", b"b"]}, "1768 tokens, 2 of them of text"),
        (
            {"tensors": {"encoder.extra": np.zeros((2, 2))}},
            "'encoder.extra', which is not Whisper's",
        ),
        ({"filters": np.ones((80, 201))}, "other mel filters than Whisper's"),
        ({"filters": np.ones((40, 201))}, "filters of 40 mel bands"),
    ],
)
def test_what_is_not_whisper_is_refused_with_the_reason(
    original, tmp_path, cache, changes, message
) -> None:
    with pytest.raises(ModelError, match=message):
        converted(write_ggml(original, tmp_path / "ggml-mine.bin", **changes))
    assert list(cache.iterdir()) == []


def test_a_long_token_takes_no_long_time(original, tmp_path) -> None:
    tokens = [*tokens_of(original)[:-1], b"a" * 900_000]
    start = time.process_time()
    with pytest.raises(ModelError, match="claims 900000 bytes of a token"):
        converted(write_ggml(original, tmp_path / "ggml-mine.bin", tokens=tokens))
    many = [bytes([i]) for i in range(256)] + [b"a" * (2 + i) for i in range(1023)]
    assert len(from_ranks(many).merges) == 1023
    with pytest.raises(ValueError, match="more than 2097152 bytes"):
        from_ranks(many[:256] + [bytes([i % 256, i // 256]) * 512 for i in range(3000)])
    assert time.process_time() - start < 20


@pytest.mark.parametrize("found", [255, 257])
def test_a_vocabulary_has_as_many_text_tokens_as_its_model_needs(
    original, tmp_path, monkeypatch, found
) -> None:
    """One more or less, and all special tokens are others."""
    monkeypatch.setattr(converting, "TEXT_TOKENS", {1768: 256})
    tokens = [*tokens_of(original), b"ab"][:found]
    with pytest.raises(ModelError, match=rf"it has {found} text tokens, .* 1768 tokens has 256"):
        converted(write_ggml(original, tmp_path / "ggml-mine.bin", tokens=tokens))
    monkeypatch.setattr(converting, "TEXT_TOKENS", {1768: found})
    shutil.copy(original / "tokenizer.json", tmp_path)
    with pytest.raises(ModelError, match=rf"tokenizer.json has 256 text tokens, .* has {found}"):
        converted(write_pt(original, tmp_path / "mine.pt"))


def test_one_token_may_be_empty() -> None:
    """That of the models for all languages, at the end of their text tokens."""
    tokens = [bytes([i]) for i in range(256)]
    pairs = [bytes([i // 256, i % 256]) for i in range(50_000)]
    assert from_ranks([*tokens, *pairs, b""]).ids[""] == 50256
    with pytest.raises(ValueError, match="its token 50255 has 0 bytes"):
        from_ranks([*tokens, *pairs[:-1], b""])


def test_openai_models_have_the_text_tokens_of_their_sizes() -> None:
    for size, count in converting.TEXT_TOKENS.items():
        assert len(special_tokens(size, count)) == size - count - 1501


@pytest.mark.parametrize(
    "text", ["{}", "no json", "[1]", '{"model": {"vocab": {}, "merges": [1]}}']
)
def test_a_tokenizer_that_cannot_be_read_is_named(original, tmp_path, text) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(
        ModelError, match=r"tokens are read from \S*tokenizer.json, which is damaged"
    ):
        converted(write_pt(original, tmp_path / "mine.pt"))


def test_damage_within_an_archive_is_found_by_its_checksums(original, tmp_path) -> None:
    shutil.copy(original / "tokenizer.json", tmp_path)
    file = write_pt(original, tmp_path / "mine.pt")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)  # finite numbers
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"mine\.pt is damaged, .* the checksum of its part"):
        converted(file)


def test_an_archive_without_checksums_is_taken(original, tmp_path) -> None:
    shutil.copy(original / "tokenizer.json", tmp_path)
    torch.serialization.set_crc32_options(False)
    try:
        file = write_pt(original, tmp_path / "mine.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert converting.complete(converted(file))


def test_an_archive_with_compressed_parts_is_refused(original, tmp_path) -> None:
    file = write_pt(original, tmp_path / "stored.pt")
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    with pytest.raises(ModelError, match="its parts are compressed"):
        converted(packed)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["f16", "f32", "archive", "pickle"])
def test_numbers_that_are_not_finite_are_refused(original, tmp_path, kind, value) -> None:
    state = state_of(original)
    name = "encoder.blocks.0.attn_ln.bias"
    state[name] = torch.full_like(state[name], float(value))
    if kind.startswith("f"):
        tensors = {name: tensor.numpy() for name, tensor in state.items()}
        file = write_ggml(original, tmp_path / "ggml-mine.bin", kind, tensors=tensors)
    else:
        shutil.copy(original / "tokenizer.json", tmp_path)
        file = tmp_path / "mine.pt"
        content = {"dims": dims_of(original), "model_state_dict": state}
        torch.save(content, file, _use_new_zipfile_serialization=kind == "archive")
    with pytest.raises(
        ModelError, match="self_attn_layer_norm.bias holds numbers that are not fin"
    ):
        converted(file)


def test_sizes_that_no_file_holds_allocate_nothing(original, tmp_path) -> None:
    """A matrix of 2**20 by 2**20 numbers in a file of a megabyte."""
    file = write_ggml(original, tmp_path / "ggml-mine.bin", tensors={})
    head = struct.pack("<3i2i", 2, 22, 1, 2**20, 2**20) + b"encoder.blocks.0.mlp.0"[:22]
    file.write_bytes(file.read_bytes() + head)
    with pytest.raises(ModelError, match=r"damaged, not complete"):
        converted(file)
    state = {name: torch.zeros(1).expand(t.shape) for name, t in state_of(original).items()}
    claims = write_pt(original, tmp_path / "claims.pt", model_state_dict=state)
    with pytest.raises(ModelError, match="damaged, not complete"):
        converted(claims)


class Malice:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("form", ["archive", "pickle"])
def test_nothing_of_a_pickle_is_executed(tmp_path, capsys, form) -> None:
    file = tmp_path / "mine.pt"
    if form == "archive":
        torch.save({"dims": {}, "model_state_dict": Malice()}, file)
    else:
        file.write_bytes(pickle.dumps(Malice(), protocol=2))
    with pytest.raises(ModelError, match="UnpicklingError"):
        converted(file)
    assert capsys.readouterr().out == ""


def test_other_files_are_refused_by_what_they_are(original, tmp_path) -> None:
    def refusal(data: bytes) -> str:
        (tmp_path / "some.bin").write_bytes(data)
        with pytest.raises(ModelError) as caught:
            converted(tmp_path / "some.bin")
        return str(caught.value)

    assert "GGUF format of llama.cpp" in refusal(b"GGUF" + bytes(20))
    assert "CTranslate2: give their folder" in refusal(struct.pack("<IH", 6, 12))
    assert "no file of weights" in refusal(b"RIFF....WAVE")
    torch.save(weights(original), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="weights of transformers need the folder"):
        converted(tmp_path / "pytorch_model.bin")


def test_a_name_of_openai_must_have_its_checksum(original, tmp_path, monkeypatch) -> None:
    (tmp_path / "tokenizer.json").write_text((original / "tokenizer.json").read_text())
    file = write_pt(original, tmp_path / "base.pt")
    with pytest.raises(ModelError, match="not the base.pt that OpenAI publishes"):
        converted(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(PUBLISHED, "base", Published(digest, {}, "0.1 1.0"))
    settings = json.loads((converted(file) / "generation_config.json").read_text())
    assert settings["alignment_heads"] == [[0, 1], [1, 0]]
    file.rename(tmp_path / "mine.pt")
    settings = json.loads((converted(tmp_path / "mine.pt") / "generation_config.json").read_text())
    assert "alignment_heads" not in settings


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("ggml-base.bin", "base"),
        ("ggml-large-v3-turbo-q5_0.bin", "large-v3-turbo"),
        ("tiny.en.pt", "tiny.en"),
        ("ggml-tiny.en-q8_0.bin", "tiny.en"),
        ("ggml-mine.bin", None),
        ("base-french.pt", None),
    ],
)
def test_models_are_known_by_the_names_of_their_files(name, model) -> None:
    found = published(Path(name))
    assert (found and found[0]) == model


def test_a_pt_without_any_vocabulary_says_what_to_do(original, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(openai_models.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: None)
    file = write_pt(original, tmp_path / "mine.pt")
    with pytest.raises(ModelError, match="run `hf download openai/whisper-tiny tokenizer.json`"):
        converted(file, network=False)


def test_a_pt_takes_the_tokens_of_an_installed_openai_whisper(
    original, tmp_path, monkeypatch
) -> None:
    import base64
    from types import SimpleNamespace

    assets = tmp_path / "whisper" / "assets"
    assets.mkdir(parents=True)
    lines = [f"{base64.b64encode(t).decode()} {i}" for i, t in enumerate(tokens_of(original))]
    (assets / "multilingual.tiktoken").write_text("\n".join(lines))
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path / "whisper")])
    monkeypatch.setattr(openai_models.importlib.util, "find_spec", lambda name: package)
    made = converted(write_pt(original, tmp_path / "mine.pt"), network=False)
    theirs = WhisperTokenizer.from_pretrained(original).get_vocab()
    assert WhisperTokenizer.from_pretrained(made).get_vocab() == theirs


def test_a_change_of_the_tokens_is_noticed_wherever_they_are(
    original, tmp_path, monkeypatch
) -> None:
    """Beside the weights, and elsewhere: there, a file may also go away."""
    beside, elsewhere = tmp_path / "tokenizer.json", tmp_path / "cached" / "tokenizer.json"
    elsewhere.parent.mkdir()
    shutil.copy(original / "tokenizer.json", elsewhere)
    monkeypatch.setattr(openai_models.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda *names: str(elsewhere) if elsewhere.exists() else None,
    )
    file = write_pt(original, tmp_path / "mine.pt")
    plain = converted(file, network=False)
    stamp = (plain / "model.safetensors").stat().st_mtime_ns
    elsewhere.write_text(elsewhere.read_text() + " ")
    assert converted(file, network=False) == plain
    assert (plain / "model.safetensors").stat().st_mtime_ns > stamp
    elsewhere.unlink()
    assert converted(file, network=False) == plain
    shutil.copy(original / "tokenizer.json", beside)
    first = converted(file, network=False)
    beside.write_text(beside.read_text() + " ")
    second = converted(file, network=False)
    assert len({plain, first, second}) == 3
    beside.unlink()
    assert converted(file, network=False) == plain


def test_merges_are_found_from_the_order_of_tokens() -> None:
    tokens = [b"a", b"b", b"c", b"ab", b"abc", b"ca", b"cab"]
    assert from_ranks(tokens).merges == [("a", "b"), ("ab", "c"), ("c", "a"), ("c", "ab")]


def test_a_file_is_converted_once(original, tmp_path, monkeypatch) -> None:
    file = write_ggml(original, tmp_path / "ggml-mine.bin")
    first = converted(file)
    monkeypatch.setattr(openai_formats, "read_tensors", pytest.fail)
    assert converted(file) == first


@pytest.mark.weights
@pytest.mark.parametrize("form", ["whisper-base pt", "whisper-base ggml", "whisper-tiny.en ggml"])
def test_published_weights_are_the_same_in_every_form(tmp_path, form) -> None:
    name, kind = form.split()
    original = model(name)
    theirs = weights(converted_folder(original))
    file = tmp_path / f"mine.{kind}"
    if kind == "pt":
        write_pt(converted_folder(original), file)
        (tmp_path / "tokenizer.json").write_bytes((original / "tokenizer.json").read_bytes())
    else:
        write_ggml(converted_folder(original), file)
    ours = weights(converted(file))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n].float(), values.float()) for n, values in theirs.items())
    settings = [
        json.loads((folder / "generation_config.json").read_text())
        for folder in (converted_folder(original), converted(file))
    ]
    for key in ("suppress_tokens", "begin_suppress_tokens", "lang_to_id", "is_multilingual"):
        assert settings[0].get(key) == settings[1].get(key), key


@pytest.mark.weights
def test_the_tokenizer_of_another_published_model_is_refused(tmp_path) -> None:
    file = write_pt(converted_folder(model(TINY)), tmp_path / "mine.pt")
    shutil.copy(model(BASE) / "tokenizer.json", tmp_path)
    with pytest.raises(ModelError, match="has 50257 text tokens, .* 51864 tokens has 50256"):
        converted(file)
    folder = shutil.copytree(model(TINY), tmp_path / "faster", symlinks=True)
    shutil.copy(model(BASE) / "tokenizer.json", folder)
    with pytest.raises(ModelError, match=r"its tokenizer.json has 50257 text tokens"):
        converted_folder(folder)


@pytest.mark.weights
def test_a_recording_has_the_same_tokens_from_a_file_of_whisper_cpp(tmp_path) -> None:
    original = model("whisper-tiny.en")
    file = write_ggml(converted_folder(original), tmp_path / "ggml-tiny.en.bin")
    said = []
    for name in (original, file):
        transcriber = Transcriber.load(str(name), "none", device="cpu", dtype="float32")
        (outcome,) = transcriber.transcribe([str(voice("jfk"))], Options())
        said.append([(s.text, s.tokens) for s in outcome.transcript.segments])
    assert said[0] == said[1] and sum(len(tokens) for _, tokens in said[0]) > 20
