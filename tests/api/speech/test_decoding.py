"""Decoding apart: the samples are those of the command; whatever a file does, it does to a child."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.audio.fork_server import FILES, Bounds
from forescribe.asr.audio.reading import open_audio, read_audio
from forescribe.asr.audio.sandbox import TRIES, Decoders
from forescribe.asr.errors import ForescribeError
from tests.api.conftest import SAMPLE, sound, until

BOUNDS = Bounds(max_s=120)
PATIENCE = 300.0


def decoded(decoders: Decoders, source: bytes, bounds: Bounds = BOUNDS) -> np.ndarray:
    with closing(decoders.decode(source, bounds, name="file")) as decoded_file:
        return read_audio(decoded_file)


def refused(
    decoders: Decoders, source: bytes | BinaryIO, bounds: Bounds = BOUNDS
) -> ForescribeError:
    with pytest.raises(ForescribeError) as caught:
        decoders.decode(source, bounds, name="file").close()
    return caught.value


def children(decoders: Decoders) -> list[int]:
    """Processes that the zygote has forked and that still run."""
    if decoders._process is None:
        return []
    parent, found = decoders._process.pid, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                after = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(after[1]) == parent and after[0] != "Z":
                found.append(int(folder.name))
    return found


def child(decoders: Decoders) -> int:
    """The one that decodes. Programs that the zygote's imports start are there for a moment only, so it
    has to be seen twice."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        before = children(decoders)
        time.sleep(0.2)
        if len(before) == 1 and children(decoders) == before:
            return before[0]
    raise AssertionError(f"no child of its own, but {children(decoders)}")


@contextmanager
def endless() -> Iterator[BinaryIO]:
    """A recording that never comes: its decoder waits for it."""
    ours, theirs = os.pipe()
    try:
        with open(ours, "rb") as source:
            yield source
    finally:
        os.close(theirs)


# -- what comes out --------------------------------------------------------------------------------


def test_the_samples_are_those_of_the_command(decoders) -> None:
    for source in (SAMPLE.read_bytes(), sound(3, rate=8000), sound(2, rate=44_100)):
        assert np.array_equal(decoded(decoders, source), read_audio(source))


def test_what_was_wrong_with_a_recording_is_told_once(decoders) -> None:
    cut, tiny = sound(4)[:-64_000], sound(0.05)
    for source in (cut, tiny, sound(1)):
        with (
            closing(decoders.decode(source, BOUNDS, name="file")) as decoded_file,
            open_audio(decoded_file) as apart,
            open_audio(source, name="file") as here,
        ):
            for recording in (apart, here):
                assert list(recording.blocks()) is not None
            assert apart.warnings == here.warnings


def encoded(container: str, codec: str) -> bytes:
    """Two seconds of tone as PyAV writes them."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=48_000, layout="mono")
        tone = (8000 * np.sin(np.arange(96_000) * 0.05)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        frame.sample_rate = 48_000
        for each in av.AudioResampler(stream.format, "mono", 48_000, 960).resample(frame):
            out.mux(stream.encode(each))
        out.mux(stream.encode(None))
    return file.getvalue()


@pytest.fixture(scope="module")
def recordings() -> dict[str, bytes]:
    flac = io.BytesIO()
    soundfile.write(flac, 0.3 * np.sin(np.arange(32_000) * 0.05), 16_000, format="FLAC")
    return {
        "wav": sound(2),
        "flac": flac.getvalue(),
        "mp3": encoded("mp3", "libmp3lame"),
        "ogg": encoded("ogg", "libopus"),
        "webm": encoded("webm", "libopus"),
        "mp4": encoded("mp4", "aac"),
    }


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    kind=st.sampled_from(["wav", "flac", "mp3", "ogg", "webm", "mp4"]),
    wrong=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=6)), max_size=12),
    head=st.booleans(),
    kept=st.floats(0.02, 1),
)
def test_whatever_is_broken_in_a_file_it_is_audio_or_an_error(
    decoders, recordings, kind, wrong, head, kept
) -> None:
    """Bytes written over, in the header or anywhere, then cut off. The decoder lives on."""
    damaged = bytearray(recordings[kind])
    for place, junk in wrong:
        at = int(place * (64 if head else len(damaged) - len(junk)))
        damaged[at : at + len(junk)] = junk
    try:
        samples = decoded(decoders, bytes(damaged[: int(kept * len(damaged))]))
    except ForescribeError as error:
        assert error.code in {"invalid_audio", "audio_too_long"}, error.code
    else:
        assert np.isfinite(samples).all() and len(samples) <= BOUNDS.max_s * 16_000
    assert decoders._process.poll() is None


# -- what is refused -------------------------------------------------------------------------------


def test_a_bomb_is_stopped_by_its_samples(decoders) -> None:
    """Twenty minutes of silence in a few kilobytes, with a limit of five seconds."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(20 * 60 * 16_000, np.int16), 16_000, format="FLAC")
    assert len(file.getvalue()) < 200_000
    assert refused(decoders, file.getvalue(), Bounds(max_s=5)).code == "audio_too_long"


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "[playlist]\nFile1={path}\nNumberOfEntries=1\nVersion=2\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><BaseURL>{path}'
        "</BaseURL></Period></MPD>",
    ],
)
def test_a_playlist_opens_nothing(decoders, text) -> None:
    error = refused(decoders, text.format(path=SAMPLE).encode())
    assert error.code == "invalid_audio"
    assert str(SAMPLE) not in error.message


def test_a_transport_stream_is_for_the_command_only(decoders, tmp_path) -> None:
    path = tmp_path / "a.ts"
    path.write_bytes(encoded("mpegts", "mp2"))
    assert len(read_audio(path)) > 16_000
    assert refused(decoders, path.read_bytes()).code == "invalid_audio"


def test_what_takes_too_much_memory(decoders) -> None:
    assert (
        refused(decoders, SAMPLE.read_bytes(), Bounds(memory_bytes=1 << 16)).code == "invalid_audio"
    )
    assert len(decoded(decoders, sound(1))) == 16_000


def test_what_takes_too_long(decoders) -> None:
    with endless() as source:
        error = refused(decoders, source, Bounds(wall_s=0.3))
    assert error.code == "invalid_audio" and "within 0.3 s" in error.message
    assert not children(decoders)


# -- what dies -------------------------------------------------------------------------------------


def test_a_decoder_that_is_killed_once_is_not_missed_and_one_that_always_is_blames_no_file(
    decoders, tmp_path
) -> None:
    """SIGKILL comes from outside: the kernel's, where memory ends, or an operator's."""
    killed: list[int] = []

    def kill() -> None:
        until(lambda: set(children(decoders)) - set(killed), PATIENCE)
        (pid,) = set(children(decoders)) - set(killed)
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    class Slow(io.BufferedReader):
        """Does not come at the first try."""

        def fileno(self) -> int:
            return never.fileno() if not killed else super().fileno()

    path = tmp_path / "a.wav"
    path.write_bytes(sound(1))
    with endless() as never, Slow(io.FileIO(path)) as source, ThreadPoolExecutor(1) as pool:
        made = pool.submit(decoders.decode, source, BOUNDS, name="file")
        kill()
        with closing(made.result(PATIENCE)) as decoded_file:
            assert len(read_audio(decoded_file)) == 16_000
    with endless() as source, ThreadPoolExecutor(1) as pool:
        made = pool.submit(refused, decoders, source)
        for _ in range(TRIES):
            kill()
        assert made.result(PATIENCE).code == "overloaded"


def test_a_child_has_nothing_but_its_recording(decoders) -> None:
    """Seen from outside while it works: its session, its limits, what it has open."""
    with endless() as source, ThreadPoolExecutor(1) as pool:
        made = pool.submit(refused, decoders, source, Bounds(wall_s=PATIENCE, cpu_s=7))
        pid = child(decoders)
        # The last but one that is set; the last, no core files, may be so from the start.
        until(lambda: _limit(pid, "Max open files") == str(FILES), PATIENCE)
        until(lambda: _limit(pid, "Max core file size") == "0", PATIENCE)
        assert os.getsid(pid) == pid
        assert _limit(pid, "Max cpu time") == "7"  # whose signal is not the machine's, SIGKILL
        hard = "Max cpu time " + " " * 13 + "7"
        assert _limit(pid, hard) == "12"
        assert _limit(pid, "Max file size") != "unlimited" != _limit(pid, "Max address space")
        opened = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()]
        assert sum(name.startswith("socket:") for name in opened) == 0
        os.kill(pid, signal.SIGKILL)
        until(lambda: set(children(decoders)) - {pid}, PATIENCE)
        (again,) = set(children(decoders)) - {pid}
        os.kill(again, signal.SIGSEGV)
        assert made.result(PATIENCE).code == "overloaded"


def _limit(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith(name):
            return line.removeprefix(name).split()[0]
    raise AssertionError(name)


@pytest.mark.slow
def test_a_zygote_that_was_killed_is_started_again_and_its_end_ends_its_children() -> None:
    # Closed before the pool waits for its thread, whatever fails here.
    with endless() as source, ThreadPoolExecutor(1) as pool, closing(Decoders()) as own:
        made = pool.submit(refused, own, source)
        pid = child(own)
        own._process.kill()  # its child is told by the kernel
        until(lambda: not Path(f"/proc/{pid}").exists() or _dead(pid), PATIENCE)
        pid = child(own)  # the recording is tried again, in another
        assert len(decoded(own, sound(1))) == 16_000
        own.close()
        until(lambda: not Path(f"/proc/{pid}").exists() or _dead(pid), PATIENCE)
        assert made.result(PATIENCE).code == "overloaded"


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
