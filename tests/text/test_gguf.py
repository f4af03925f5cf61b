"""GGUF files: the tokens of transformers' `generate` on the same file, and one line for others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from forescribe.speculative.device import choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.checkpoint import quiet
from forescribe.text.generator import TextGenerator
from forescribe.text.language_model import load
from forescribe.text.presets import resolve
from forescribe.text.streaming import Options

CPU = choose("cpu")


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A llama of two layers with random weights and bytes for tokens."""
    gguf = pytest.importorskip("gguf", reason="GGUF files are read by gguf: scripts/setup gguf")
    pytest.importorskip("accelerate", reason="transformers reads GGUF with it: scripts/setup gguf")
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    width, layers, wide = 32, 2, 64
    tokens = [*sorted(bytes_to_unicode().values()), "ab", "<|end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width)}
    for i in range(layers):
        for name, rows, columns in (
            ("attn_q", width, width), ("attn_k", 16, width), ("attn_v", 16, width),
            ("attn_output", width, width), ("ffn_gate", wide, width), ("ffn_up", wide, width),
            ("ffn_down", width, wide),
        ):  # fmt: skip
            shapes[f"blk.{i}.{name}"] = (rows, columns)
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(width, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name, shape in shapes.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_writes_the_tokens_of_generate(file) -> None:
    with quiet():
        theirs = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    prompt = "abcde"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    for draft in ("ngram", "none", str(file)):
        pair = resolve(str(file), draft)
        generator = TextGenerator.load(pair.target, pair.draft, device="cpu", dtype="float32")
        (made,) = generator.generate([prompt], Options(max_tokens=12))
        assert [t.id for t in made.tokens] == [t for t in expected if t != 257]


def test_a_damaged_file_is_refused_in_one_line(file, tmp_path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(LoadError, match=r"--model \S+cut.gguf cannot be loaded") as caught:
        load(cut, CPU)
    assert "\n" not in str(caught.value)


def test_files_of_other_formats_are_named(tmp_path) -> None:
    (tmp_path / "x.onnx").touch()
    with pytest.raises(LoadError, match=r"x.onnx is a file: .* or a .gguf of llama.cpp"):
        resolve(str(tmp_path / "x.onnx"), None)
