"""Write the bundled speech models: OpenAI's tiny.en, and a draft that `forescribe distill` made for it.

    scripts/setup real                                      # fetches whisper-tiny.en, checked by its SHA-256
    python -m training.tiny_en.bundle --target FOLDER --draft training/made/tiny-draft

`bundled/tiny.en` has OpenAI's weights in 8 bits (`stored_int8`) and the tokenizer's file without its
spaces, `bundled/tiny.en-draft` the decoder layers of the draft alone: its embeddings are the target's.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from forescribe.asr.model.presets import locate
from forescribe.speculative.drafters.model_drafter import TOKENS_FILE
from forescribe.speculative.models.quantized import BORROWED
from training.paths import BUNDLED
from training.stored import stored_int8

TARGET, DRAFT = "tiny.en", "tiny.en-draft"
TOKENIZER = "tokenizer.json"
SETTINGS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
)
TIED, LICENSE = "proj_out.weight", "LICENSE"


def write(source: Path, out: Path, *, target: Path | None = None) -> None:
    """A bundled folder from one of transformers' floats; `target` is that of a draft, which lends embeddings
    and tokenizer."""
    scratch = out.with_name(f".{out.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    weights = load_file(source / "model.safetensors")
    for name in (TIED, *(BORROWED if target else ())):
        weights.pop(name, None)
    file = scratch / "model.safetensors"
    save_file(stored_int8(weights), file, metadata={"format": "pt"})
    file.chmod(0o644)
    for name in SETTINGS:
        content = json.loads((source / name).read_text("utf-8"))
        (scratch / name).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    if target is None:
        content = json.loads((source / TOKENIZER).read_text("utf-8"))
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (scratch / TOKENIZER).write_text(text + "\n", "utf-8")
    else:
        shutil.copyfile(target / TOKENIZER, scratch / TOKENIZER)
        if (source / TOKENS_FILE).is_file():
            shutil.copyfile(source / TOKENS_FILE, scratch / TOKENS_FILE)
    if (out / LICENSE).is_file():
        shutil.copyfile(out / LICENSE, scratch / LICENSE)
    shutil.rmtree(out, ignore_errors=True)
    scratch.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_en.bundle")
    parser.add_argument("--target", type=Path, help="folder of OpenAI's whisper-tiny.en")
    parser.add_argument("--draft", type=Path, help="folder that forescribe distill wrote")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    options = parser.parse_args()
    if options.target:
        write(locate(options.target, network=False), options.out / TARGET)
    if options.draft:
        write(options.draft, options.out / DRAFT, target=options.out / TARGET)


if __name__ == "__main__":
    main()
