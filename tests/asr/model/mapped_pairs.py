"""Pairs of both published vocabularies that agree: one decoder under two numberings of its tokens.

The target has large-v3's ids and 128 mel bins, the draft those of an older, smaller Whisper with 80: without
Cantonese, without timestamps in its tokenizer's file, and with `<|nocaptions|>`. Both encoders hear the mean
over the mel bins, which differs little between the two, so that drafts are nearly always right.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AddedToken,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from forescribe.asr.model.whisper import LogMel
from tests.docs.pages import ROOT

from . import large_v3

V3, OLDER = "whisper-large-v3", "whisper-tiny-older"
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json")
SETTINGS = ("generation_config.json", "processor_config.json", "preprocessor_config.json")
YUE = 50358


def published(name: str) -> Path:
    """The folder of published configurations and tokenizers, which do not ship with the repository: in
    FORESCRIBE_WHISPER_FILES, or beside the repository. Skips the test where there is none."""
    beside = ROOT.parent / "shared" / "data" / "hub"
    folder = Path(os.environ.get("FORESCRIBE_WHISPER_FILES", beside))
    if not (folder / name / "tokenizer.json").is_file():
        pytest.skip("FORESCRIBE_WHISPER_FILES names no folder with Whisper's published files")
    return folder / name


def older_files(folder: Path) -> Path:
    """The draft's files with made-up text tokens, as `large_v3.tokenizer` makes the target's."""
    newer = large_v3.tokenizer()
    names = sorted(newer.get_vocab(), key=newer.get_vocab().__getitem__)
    specials = [name for name in names[large_v3.TEXT : 50365] if name != "<|yue|>"]
    specials = ["<|nocaptions|>" if name == "<|nospeech|>" else name for name in specials]
    text = {piece: i for i, piece in enumerate(names[: large_v3.TEXT])}
    made = WhisperTokenizer(vocab=text, merges=[])
    wanted = [AddedToken(token, normalized=False, special=True) for token in specials]
    made.add_special_tokens({"extra_special_tokens": wanted[1:]})
    made.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    options = json.loads((large_v3.PUBLISHED / "generation_config.json").read_text())
    options["no_timestamps_token_id"] -= 1
    options["lang_to_id"].pop("<|yue|>")
    options["task_to_id"] = {name: i - 1 for name, i in options["task_to_id"].items()}
    options.pop("forced_decoder_ids")
    (folder / "generation_config.json").write_text(json.dumps(options))
    return folder


def newer_files(folder: Path) -> Path:
    """The target's files with made-up text tokens."""
    large_v3.tokenizer().save_pretrained(folder)
    for name in SETTINGS[:2]:
        shutil.copy(large_v3.PUBLISHED / name, folder)
    return folder


def write_target(folder: Path, files: Path, *, positions: int | None = None, **sizes: int) -> Path:
    """`positions` leaves it the first ones of large-v3's, so that texts are shorter."""
    torch.manual_seed(0)
    changes = {**large_v3.config(2).to_dict(), **sizes}
    model = WhisperForConditionalGeneration(WhisperConfig(**changes)).eval()
    if positions is not None:
        model.config.max_target_positions = positions
        places = model.model.decoder.embed_positions
        places.num_embeddings = positions
        places.weight = torch.nn.Parameter(places.weight.detach()[:positions].clone())
    _hear(model, 128, 0.0)
    return _save(folder, model, files)


def write_draft(folder: Path, target: Path, files: Path, *, noise: float = 0.0) -> Path:
    """The target under the older numbering, with 80 mel bins; `noise` is added to its decoder's weights."""
    theirs = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32)
    config = copy.deepcopy(theirs.config)
    config.vocab_size, config.num_mel_bins = theirs.config.vocab_size - 1, 80
    model = WhisperForConditionalGeneration(config).eval()
    weights = theirs.state_dict()
    kept = torch.tensor([i for i in range(theirs.config.vocab_size) if i != YUE])
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        weights[name] = weights[name][kept]
    weights.pop("model.encoder.conv1.weight")
    missing = model.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["model.encoder.conv1.weight"] and not missing.unexpected_keys
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.model.decoder.layers.parameters():
            weight.add_(noise * torch.randn_like(weight))
    _hear(model, 80, _louder())
    return _save(folder, model, files)


def _hear(model: WhisperForConditionalGeneration, bins: int, louder: float) -> None:
    """Lets the encoder read the mean of its mel bins, which are `louder` than the target's."""
    generator = torch.Generator().manual_seed(4)
    conv = model.model.encoder.conv1
    with torch.no_grad():
        reads = torch.randn((conv.out_channels, 1, 3), generator=generator)
        conv.weight.copy_(reads.expand_as(conv.weight) / bins)
        conv.bias.sub_(louder * reads[:, 0].sum(-1))


def _louder() -> float:
    """How much higher the mean of 80 mel bins is than that of 128: their filters are wider."""
    noise = np.random.default_rng(0).standard_normal(16_000 * 30).astype(np.float32) * 0.1
    means = [
        float(LogMel(WhisperFeatureExtractor(feature_size=bins))([noise]).mean())
        for bins in (80, 128)
    ]
    return means[0] - means[1]


def _save(folder: Path, model: WhisperForConditionalGeneration, files: Path) -> Path:
    model.save_pretrained(folder)
    for name in (*FILES, *SETTINGS):
        if (files / name).is_file():
            shutil.copyfile(files / name, folder / name)
    path = folder / "generation_config.json"
    options = json.loads(path.read_text())
    options.pop("alignment_heads", None)  # of layers that these decoders do not have
    options["num_beams"] = 1  # its width is not large-v3's
    path.write_text(json.dumps(options))
    return folder
