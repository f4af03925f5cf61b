"""`forescribe listen`: what is being said, from a microphone, a pipe, or a recording that is played back.

Knows the order of the work and the exit code. Audio arrives by `asr.audio.arriving`, becomes events by
`live_engines`, is shown by `live_text` and kept by `asr.live.record`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import ForescribeError, UsageError, visible

from .listen_options import ListenOptions
from .option_records import takes

if TYPE_CHECKING:
    from forescribe.asr.audio.arriving import Arrival
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.formats.transcript_parts import Json
    from forescribe.asr.live.events import Event
    from forescribe.asr.live.record import LiveRecord
    from forescribe.diarize.diarizer import Diarizer
    from forescribe.diarize.engines.online import OnlineSpeakers

    from .console import Console
    from .live_engines import LiveEngine
    from .live_text import LiveText

CHECK_S = 0.3
"""How long the beginning of a pipe is waited for: garbage is told before a model is loaded."""

GRACE_S = 0.3
"""After Ctrl-C, which ends the program before the pipe too: for what that has still to say."""

MUTE_S = 10.0
"""A microphone that gives zeros for so long is switched off, or another one is meant."""

ENDING = b"forescribe: ending; the last words are decoded, a second Ctrl-C ends at once\n"


@takes(ListenOptions)
def listen(**values: Any) -> None:
    """Write down what is being said: from a microphone, or from a program before a pipe.

    Lines go to stdout, text that may still change to stderr. Ctrl-C finishes the turn and writes the files
    of -o. A pipe holds samples (s16le) or a wav file, as of `ffmpeg -i URL -f s16le -ac 1 -ar 16000 -`."""
    options = ListenOptions(**values)
    if options.list_devices:
        _list_devices()
        return
    from .console import Console

    console = Console(quiet=options.quiet, verbose=False, json=False)
    outputs = _outputs(options, console)
    arrival = _arrival(options)
    with Stop(ENDING) as stop:
        with stop.interruptible():
            if options.replay is None:  # a recording is played back once there is a model
                arrival.check(CHECK_S)
            if options.server is None:
                console.status("loading the model")
            from forescribe.asr.live.record import LiveRecord

            from .live_text import LiveText

            diarizer = _diarizer(options)
            engine = _engine(options, console, diarizer)
        lockstep = options.replay is not None and options.pace is None
        text = LiveText(console, words=options.words, paced=not lockstep)
        with LiveRecord(audio=diarizer is not None or options.keep_audio) as record:
            session = _Session(options, console, arrival, engine, record, text, stop)
            with engine:
                console.status(session.greeting)
                error = session.run(lockstep=lockstep)
            if error is not None and (isinstance(error, UsageError) or not record.sample_count):
                raise error
            if outputs is not None:
                _write(options, console, outputs, record, session.transcript(), diarizer)
        session.summarise()
        if error is not None:
            raise error
        if text.closed:
            raise BrokenPipeError
    if text.failed:
        raise typer.Exit(1)


class _Session:
    """The audio from its first sample to its last word."""

    def __init__(
        self,
        options: ListenOptions,
        console: Console,
        arrival: Arrival,
        engine: LiveEngine,
        record: LiveRecord,
        text: LiveText,
        stop: Stop,
    ) -> None:
        self.options, self.console, self.arrival = options, console, arrival
        self.engine, self.record, self.text, self.stop = engine, record, text, stop
        self._spans: dict[int, tuple[float, float]] = {}  # of items that are being completed
        self._ended_s = 0.0  # where the last of them ends
        self._mute = options.replay is None and options.audio is None

    @property
    def greeting(self) -> str:
        options = self.options
        what = "stdin" if options.audio else options.replay or "the microphone"
        return f"listening to {what}; Ctrl-C ends"

    def run(self, *, lockstep: bool) -> ForescribeError | None:
        """Feed all audio and show all text; the error that ended the audio, if one did. With `lockstep`
        every step is decoded before the next one is fed."""
        from forescribe.asr.audio.arriving import BLOCK_S

        error = None
        try:
            for samples in self._blocks():
                self.record.feed(samples)
                self.engine.feed(samples)
                self._show()
                while not self.engine.wait(BLOCK_S, idle=True) if lockstep else self._must_wait():
                    self._show()
                    if not lockstep:
                        time.sleep(BLOCK_S)
        except ForescribeError as raised:
            error = raised
        finally:
            self.arrival.close()
        try:
            self.engine.finish()
            while not (self.text.closed and self.options.output_dir is None):
                over = self.engine.wait(BLOCK_S)
                self._show()
                if over:
                    break
        except ForescribeError as raised:  # what was told until then is kept
            error = error or raised
            self._show()
            for start_s, end_s in (*self._spans.values(), (self._ended_s, self.record.seconds)):
                self.record.fail(start_s, end_s, raised)
            with suppress(BrokenPipeError):
                self.text.end()
        self.text.erase()
        return error

    def transcript(self) -> Transcript:
        """Of the whole session, with what was wrong with its audio."""
        options = self.options
        live: dict[str, Json] = {
            "step_s": options.step,
            "delay": options.delay,
            "turns": options.turns,
        }
        transcript = self.record.transcript({"live": live})
        return replace(transcript, warnings=(*self.arrival.notices, *transcript.warnings))

    def summarise(self) -> None:
        for notice in self.arrival.notices:
            self.console.notice(notice.message)
        if not self.options.quiet:
            turns, audio_s = self.text.turns, self.record.seconds
            said = f"{turns} turn{'s' * (turns != 1)}" if turns else "no speech"
            self.console.rich.print(
                f"[bold]{audio_s:.1f} s of audio, {said}{self.text.lateness()}[/]"
            )

    def _blocks(self) -> Iterator[Any]:
        """The samples, until the audio or somebody ends them; text is shown while none come."""
        ends_s = math.inf
        for samples in self.arrival.blocks():
            now = time.monotonic()
            if self.stop.requested:
                ends_s = min(ends_s, now + GRACE_S)
            if self.text.closed or now >= ends_s or self.record.sample_count >= self._limit:
                return
            if len(samples):
                self._listen_for_silence(samples)
                yield samples[: self._limit - self.record.sample_count]
            else:
                self._show()

    @property
    def _limit(self) -> int:
        return round(min(self.options.limit_s, 1e9) * 16_000)

    def _must_wait(self) -> bool:
        """Whether the audio comes so much faster than it is decoded that its sender has to wait."""
        from forescribe.asr.audio.arriving import AHEAD_S

        return self.engine.behind_s > AHEAD_S and not (self.stop.requested or self.text.closed)

    def _show(self) -> None:
        for event in self.engine.events():
            self._keep(event)
            with suppress(BrokenPipeError):  # `text.closed` ends the session, with its files
                self.text.show(event)

    def _keep(self, event: Event) -> None:
        from forescribe.asr.live.events import Committed, Completed, Failed

        if isinstance(event, Committed):
            self._spans[event.item] = (event.start_s, event.end_s)
            self._ended_s = event.end_s
        elif isinstance(event, Completed):
            self._spans.pop(event.item, None)
            if self.options.output_dir is not None:
                self.record.add(event.start_s, event.plain or event.transcript)
            for notice in event.transcript.warnings:
                if notice.code == "speakers_failed":
                    self.text.erase()
                    self.console.notice(notice.message)
        elif isinstance(event, Failed):
            self.record.fail(*self._spans.pop(event.item, (0.0, 0.0)), event.error)

    def _listen_for_silence(self, samples: Any) -> None:
        if not self._mute:
            return
        self._mute = not samples.any()
        if self._mute and self.record.sample_count >= MUTE_S * 16_000:
            self._mute = False
            self.console.notice(
                "the microphone gives no sound at all: switch it on, allow its use, or choose another with "
                "--input (--list-devices)"
            )


def _list_devices() -> None:
    from forescribe.asr.audio.arriving import input_devices

    devices = input_devices()
    if not devices:
        raise UsageError("there is no microphone; pipe audio in: `... | forescribe listen -`")
    for line in devices:
        typer.echo(visible(line))


def _arrival(options: ListenOptions) -> Arrival:
    import sys

    from forescribe.asr.audio.arriving import PcmFormat, microphone, piped, replayed

    if options.replay is not None:
        return replayed(options.replay, options.pace)
    if options.audio is None:
        device = options.input
        return microphone(int(device) if device and device.isdecimal() else device)
    form = PcmFormat(options.rate, options.channels)
    if sys.stdin.isatty():
        raise UsageError(
            "stdin is a terminal: pipe audio in, as in `arecord -f S16_LE -r 16000 | forescribe listen -`"
        )
    return piped(cast(BufferedReader, sys.stdin.buffer), form)


def _outputs(options: ListenOptions, console: Console) -> Outputs | None:
    """Where files go, checked before anything is loaded; None for no files."""
    if options.output_dir is None:
        return None
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.storage.stores import Stores, telling

    stores = Stores(telling(console.notice))
    outputs = Outputs.plan((), options.output_dir, options.formats, stores=stores)
    if outputs.folder is None and options.keep_audio:
        raise UsageError("--keep-audio needs a folder of this machine: name one with -o")
    return outputs


def _engine(options: ListenOptions, console: Console, diarizer: Diarizer | None) -> LiveEngine:
    live = options.live()
    if options.server is not None:
        from .live_server import ServerEngine

        return ServerEngine(options.server, os.environ.get("OPENAI_API_KEY"), options.model, live)
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.model.presets import made_for, resolve
    from forescribe.asr.model.special_tokens import check_request
    from forescribe.speculative.native.kernel_build import advice

    from .live_engines import LocalEngine

    pair = resolve(options.model, options.draft)
    check_request(options.language, options.task, made_for(pair.target))
    transcriber = Transcriber.load(
        **options.load_arguments(),
        model=options.model,
        draft=options.draft,
        language=options.language,
        batch=options.batch_size,
        network=not options.local_files_only,
    )
    kind = transcriber.whisper.device.kind
    console.advice(advice(transcriber.context.forward, asked=options.engine, device=kind))
    return LocalEngine(transcriber, live, _speakers(options, diarizer))


def _speakers(options: ListenOptions, diarizer: Diarizer | None) -> OnlineSpeakers | None:
    """What finds the speakers of lines; `diarizer` is that of the files."""
    if not options.labels:
        return None
    from forescribe.diarize.engines.online import OnlineSpeakers
    from forescribe.diarize.engines.registry import load_online
    from forescribe.diarize.turns import ANONYMOUS

    speakers, engine = options.speakers, load_online(diarizer, device=options.device)
    known, most = speakers.known_people(), speakers.bounds.most
    return OnlineSpeakers(engine, lambda number: f"{ANONYMOUS}{number:02d}", known, most)


def _diarizer(options: ListenOptions) -> Diarizer | None:
    """That of the files; None where a server has found the speakers."""
    if not options.diarize or options.output_dir is None or options.server is not None:
        return None
    return options.speakers.engine(options.device, network=not options.local_files_only)


def _write(
    options: ListenOptions,
    console: Console,
    outputs: Outputs,
    record: LiveRecord,
    transcript: Transcript,
    diarizer: Diarizer | None,
) -> None:
    """Write the files of the session. Where speakers cannot be found they are written without, and the
    error is raised then."""
    from forescribe.asr.formats.files import RECORDING, formats, rendered

    stem = _free(outputs.folder, options.stem, outputs.formats)
    error = None
    if diarizer is not None and record.sample_count:
        console.status("finding the speakers")
        from forescribe.diarize.transcribers import SpeakerOnlyTranscriber

        speakers = options.speakers
        finder = SpeakerOnlyTranscriber(
            diarizer,
            speakers.bounds,
            speakers.known_people(),
            transcript,
        )
        (outcome,) = finder.transcribe([record.sound(stem)])
        transcript, error = outcome.transcript or transcript, outcome.error
    if transcript.diarized:  # what rttm calls it
        transcript = replace(transcript, settings={**transcript.settings, RECORDING: stem})
    texts = [(f"{stem}.{f.name}", rendered(f, transcript, stem)) for f in formats(outputs.formats)]
    for name, content in texts:
        outputs.store.put(name, content.encode("utf-8", errors="replace"))
    names = [name for name, _ in texts]
    if options.keep_audio and outputs.folder is not None and record.sample_count:
        record.save_audio(outputs.folder / f"{stem}.flac")
        names.append(f"{stem}.flac")
    from .console import escape, file_names

    if not options.quiet and outputs.where is not None:
        shown = file_names([outputs.where / name for name in names])
        console.rich.print(f"-> {escape(shown)}")
    if error is not None:
        raise error


def _free(folder: Path | None, stem: str, formats: tuple[str, ...]) -> str:
    """A name that no file has yet."""
    if folder is None:
        return stem
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    extensions = [*formats, "flac"]
    taken = (any((folder / f"{n}.{e}").exists() for e in extensions) for n in names)
    return next(name for name, used in zip(names, taken, strict=True) if not used)
