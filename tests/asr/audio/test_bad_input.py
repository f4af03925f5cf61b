"""Bad recordings through the whole command: one clear line each, the good ones are still done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from forescribe.asr.batch.destinations import MANIFEST as NAME
from forescribe.cli import main as command_line
from tests.asr.model import folders
from tests.asr.recordings import riff

RATE = 16_000
NOISE = (0.1 * np.random.default_rng(0).standard_normal(4 * RATE)).astype(np.float32)
DATA = (20_000 * NOISE).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target")
    draft = folders.write_distilled(root / "draft", target)
    return ["--model", str(target), "--draft", str(draft), "--device", "cpu", "--no-guards"]


def write_video(path: Path) -> None:
    """Pictures, and no sound."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in range(10):
            picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_nan() -> np.ndarray:
    samples = NOISE.copy()
    samples[100:110] = np.nan
    samples[200] = np.inf
    return samples


MAKE: dict[str, Callable[[Path], object]] = {
    "good.wav": lambda p: soundfile.write(p, NOISE, RATE),
    "good.flac": lambda p: soundfile.write(p, NOISE, RATE),
    "good.mp3": lambda p: soundfile.write(p, NOISE, RATE),
    "zero.wav": lambda p: p.touch(),
    "text.wav": lambda p: p.write_text("These are the minutes of our last meeting.\n" * 20),
    "noise.bin": lambda p: p.write_bytes(np.random.default_rng(1).bytes(20_000)),
    "video.mp4": write_video,
    "folder.wav": lambda p: p.mkdir(),
    "missing.wav": lambda p: None,
    "cut.wav": lambda p: (soundfile.write(p, NOISE, RATE), cut(p)),
    "cut.mp3": lambda p: (soundfile.write(p, np.tile(NOISE, 3), RATE), cut(p)),
    "nan.wav": lambda p: soundfile.write(p, with_nan(), RATE, subtype="FLOAT"),
    "short.wav": lambda p: soundfile.write(p, NOISE[:320], RATE),
    "head.wav": lambda p: (soundfile.write(p, NOISE, RATE), p.write_bytes(p.read_bytes()[:44])),
    "codec.wav": lambda p: p.write_bytes(riff(DATA, tag=0x7A21)),
    "bits.wav": lambda p: p.write_bytes(riff(DATA, bits=0)),
    "hertz.wav": lambda p: p.write_bytes(riff(DATA, rate=1)),
    "claim.wav": lambda p: p.write_bytes(riff(DATA, size=64_000)),
    "silence.wav": lambda p: soundfile.write(p, np.zeros(180 * RATE, np.float32), RATE),
}

FAILED = {
    "zero.wav": ("empty_file", "the file is empty (0 bytes)"),
    "text.wav": ("invalid_audio", "not audio that can be decoded"),
    "noise.bin": ("invalid_audio", "not audio"),
    "video.mp4": ("no_audio_stream", "no audio stream, only video"),
    "folder.wav": ("unreadable_file", "a folder without recordings"),
    "missing.wav": ("missing_file", "no such file"),
    "codec.wav": ("invalid_audio", "the codec of its sound is unknown"),
    "bits.wav": ("invalid_audio", "the codec of its sound is unknown"),
    "hertz.wav": (
        "invalid_audio",
        "1 channel at 1 Hz; 1 to 64 channels at 4000 to 768000 Hz are read",
    ),
}
WARNED = {
    "cut.wav": "truncated_audio",
    "cut.mp3": "truncated_audio",
    "nan.wav": "non_finite_samples",
    "short.wav": "short_audio",
    "head.wav": "truncated_audio",
    "claim.wav": "unread_audio",
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, make in MAKE.items():
        make(tmp_path / name)
    return tmp_path


def ours(err: str) -> list[str]:
    """All lines: decoders must not complain past us."""
    return [line for line in err.splitlines() if line]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["forescribe", *arguments])
    try:
        command_line.main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_one_clear_line_each_and_the_good_ones_are_written(pair, here, monkeypatch, capfd):
    options = ["-o", "out", "-f", "txt,vtt", "--no-vad"]
    names = [name for name in MAKE if name != "silence.wav"]
    assert run(monkeypatch, *names, *pair, *options) == 1
    out, err = capfd.readouterr()
    lines = ours(err)
    assert out == "" and "Traceback" not in err
    for name, (code, message) in FAILED.items():
        (line,) = [text for text in lines if text.startswith(f"failed {name}: ")]
        assert message in line and line.endswith(f"({code})")
    done = [name for name in names if name not in FAILED]
    for name in done:
        assert sum(text.startswith(f"{name}: ") for text in lines) == 1
    assert sum(text.startswith("  note ") for text in lines) == len(WARNED)
    assert lines[-1].startswith(f"{len(FAILED)} failed: ")
    assert all(f"{name}: {code}" in lines[-1] for name, (code, _) in FAILED.items())
    assert len(lines) == len(names) + len(WARNED) + 2
    written = {path.name for path in (here / "out").iterdir()}
    assert written == {NAME} | {
        f"{stem_of(name)}.{kind}" for name in done for kind in ("txt", "vtt")
    }


def stem_of(name: str) -> str:
    """Those whose stem is taken keep their extension."""
    stem = Path(name).stem
    return name if sum(Path(other).stem == stem for other in MAKE) > 1 else stem


def test_what_can_be_read_is_done_with_a_warning(pair, here, monkeypatch, capfd) -> None:
    assert run(monkeypatch, *WARNED, *pair, "--records", "-f", "txt", "-o", "out") == 0
    out, _ = capfd.readouterr()
    records = {r["path"]: r for r in map(json.loads, out.splitlines())}
    assert {name: r["status"] for name, r in records.items()} == dict.fromkeys(WARNED, "succeeded")
    for name, code in WARNED.items():
        assert code in records[name]["warnings"], name
    assert 1.5 < records["cut.wav"]["audio_s"] < 2.5
    assert records["short.wav"]["audio_s"] == 0.02


def test_long_silence_is_no_failure_and_has_no_words(pair, here, monkeypatch, capfd) -> None:
    assert run(monkeypatch, "silence.wav", *pair, "-f", "all", "-o", "out") == 0
    assert "silence.wav: 180.0 s of audio, no speech" in capfd.readouterr().err
    read = {p.suffix: p.read_text(encoding="utf-8") for p in (here / "out").glob("silence.*")}
    data = json.loads(read.pop(".json"))
    assert (data["text"], data["segments"]) == ("", [])
    assert data["coverage"]["silent_s"] == data["duration"] == 180.0
    assert read == {".txt": "", ".srt": "", ".vtt": "WEBVTT\n\n", ".tsv": "start\tend\ttext\n"}
