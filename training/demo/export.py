"""Export a model as a folder that transformers, CTranslate2 and this project load.

File names and settings are Whisper's; weights are in float16, with "dtype": "float32" in config.json so
that loading converts them to float32. Knows nothing of training.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from training.demo.windows import ALPHABET
from training.sentences import vocabulary


def non_speech_pieces(tokenizer: WhisperTokenizer) -> list[int]:
    """Suppressed ids, by the rule of openai/whisper's tokenizer.non_speech_tokens."""
    symbols = list('"#()*+/:;<=>@[\\]^_`{|}~「」『』')
    symbols += "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪".split()
    notes = set("♩♪♫♬♭♮♯")
    symbols += sorted(notes)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    # Hyphens and apostrophes are allowed within a word, but not at its start.
    found = {ids(" -")[0], ids(" '")[0]}
    space = ids(" ")[0]
    for symbol in symbols:
        for row in (ids(symbol), ids(" " + symbol)):
            if len(row) == 1 or symbol in notes:
                found.add(row[0])
    # With so few pieces " -" may begin with the bare space, and a note's first byte with a byte
    # that other signs share; the space must stay writable, as must the colon of a clock.
    return sorted(found - {space, *ids(":")})


def generation_settings(tokenizer: WhisperTokenizer, decoder_layers: int) -> GenerationConfig:
    space = tokenizer(" ", add_special_tokens=False)["input_ids"][0]
    specials = [
        vocabulary.TRANSLATE,
        vocabulary.TRANSCRIBE,
        vocabulary.SOT,
        vocabulary.START_OF_LM,
        vocabulary.START_OF_PREV,
        vocabulary.NO_SPEECH,
    ]
    first = vocabulary.SOT + 1
    upper = range(decoder_layers // 2, decoder_layers)
    return GenerationConfig(
        alignment_heads=[[layer, head] for layer in upper for head in range(4)],
        begin_suppress_tokens=[space, vocabulary.EOT],
        bos_token_id=vocabulary.EOT,
        decoder_start_token_id=vocabulary.SOT,
        eos_token_id=vocabulary.EOT,
        pad_token_id=vocabulary.EOT,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": first + n for n, code in enumerate(vocabulary.CODES)},
        task_to_id={"transcribe": vocabulary.TRANSCRIBE, "translate": vocabulary.TRANSLATE},
        max_initial_timestamp_index=50,
        max_length=448,
        no_timestamps_token_id=vocabulary.NO_TIMESTAMPS,
        prev_sot_token_id=vocabulary.START_OF_PREV,
        return_timestamps=False,
        suppress_tokens=sorted({*non_speech_pieces(tokenizer), *specials}),
    )


def export(model: WhisperForConditionalGeneration | WhisperForCausalLM, folder: Path) -> None:
    """Write config, generation settings, weights, feature extractor and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.load()
    layers = model.config.decoder_layers
    model.config.dtype = torch.float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    generation_settings(tokenizer, layers).save_pretrained(folder)
    half = {
        name: value.half().contiguous()
        for name, value in model.state_dict().items()
        if name != "proj_out.weight"  # tied to the token embedding
    }
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    processor = WhisperProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer)
    processor.save_pretrained(folder)
    processor.feature_extractor.save_pretrained(folder)  # preprocessor_config.json
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "vocab.json").write_bytes((vocabulary.FOLDER / "vocab.json").read_bytes())
    (folder / "merges.txt").write_bytes((vocabulary.FOLDER / "merges.txt").read_bytes())


def export_ctc(head: nn.Linear, path: Path) -> None:
    """Write the CTC head [C, D] with its alphabet in the metadata; 0 is blank."""
    tensors: dict[str, Tensor] = {"weight": head.weight.half(), "bias": head.bias.half()}
    tensors = {name: value.detach().contiguous() for name, value in tensors.items()}
    alphabet = ["<blank>", *ALPHABET]
    save_file(tensors, path, metadata={"alphabet": json.dumps(alphabet)})
    path.chmod(0o644)
    path.with_suffix(".json").write_text(json.dumps({"blank": 0, "alphabet": alphabet}) + "\n")
