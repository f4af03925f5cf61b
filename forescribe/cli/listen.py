"""`forescribe listen`: what is being said, from a microphone, a pipe, or a recording that is played back.

Knows the options, the order of the work and the exit code. Audio arrives by `asr.audio.arriving`, becomes
events in `live_session`, is shown by `live_text` and kept by `asr.live.record`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError, visible

from .option_records import DECODING, INPUT, OUTPUT, arg, like, opt, takes
from .options import LoadOptions, RunOptions, SpeakerOptions, SpeechOptions, codes_of, decodes, flag
from .transcribe_options import STDOUT, TranscribeOptions

if TYPE_CHECKING:
    from forescribe.asr.audio.arriving import Arrival
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.formats.transcript_parts import Json
    from forescribe.asr.live.events import LiveOptions
    from forescribe.asr.live.record import LiveRecord
    from forescribe.diarize.diarizer import Diarizer

    from .console import Console
    from .live_session import LiveEngine

Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
"""That of `asr.live.commit`, which takes too long to import here."""

CHECK_S = 0.3
"""How long the beginning of a pipe is waited for: garbage is told before a model is loaded."""

ENDING = b"forescribe: ending; the last words are decoded, a second Ctrl-C ends at once\n"


@dataclass(frozen=True, kw_only=True)
@decodes(live=True)
class ListenOptions(SpeechOptions, SpeakerOptions):
    """The parsed command line. Raises UsageError for values and combinations that are impossible."""

    audio: str | None = arg("[-]", "- reads stdin; without it, the microphone is used.", None)
    # Input
    input: str | None = opt(
        INPUT,
        "DEVICE",
        "Microphone, by its number in --list-devices or a part of its name.",
        shown="the system's",
    )
    list_devices: bool = opt(INPUT, "--list-devices", "List microphones and exit.", False)
    replay: str | None = opt(INPUT, "FILE", "Play back a recording as if it were spoken now.")
    speed: str = opt(
        INPUT,
        "FACTOR",
        "Speed of --replay; max, or 0, is as fast as every step can be decoded.",
        "1",
    )
    # Output
    words: bool = opt(
        OUTPUT,
        "--words/--lines",
        "Write words when they are released, though the rest of a turn may contradict them, or lines when "
        "turns are complete (default).",
        False,
    )
    output_dir: str | None = like(
        RunOptions,
        "output_dir",
        "Folder for the transcript of the whole session, here or in object storage.",
        default=None,
        shown="no files",
    )
    output_format: str = like(RunOptions, "output_format")
    word_timestamps: bool | None = flag("word_timestamps")
    keep_audio: bool = opt(OUTPUT, "", "Write the audio beside the transcript (flac).", False)
    # Decoding
    initial_prompt: str | None = flag("initial_prompt", names="--prompt --initial-prompt TEXT")
    step: float = opt(
        DECODING, "SECONDS", "Decode after so much more speech.", 1.0, min=0.1, max=10
    )
    delay: Delay = opt(
        DECODING,
        "DELAY",
        f"How certain a word is before it is released: {', '.join(get_args(Delay))}.",
        "medium",
    )
    turns: Literal["pause", "sentence", "none"] = opt(
        DECODING,
        "METHOD",
        "What ends a line. pause: silence. sentence: silence, up to 4 s where words end no sentence. none: "
        "the audio's end.",
        "pause",
    )
    silence: float = opt(DECODING, "SECONDS", "Silence that ends a turn.", 0.8, min=0.1, max=30)
    # Speakers, performance, diagnostics
    diarize: bool = like(
        TranscribeOptions,
        "diarize",
        "Begin lines with their speakers, who are found at the end of a turn, and after the end label every "
        "word of the transcript in --output-dir.",
    )
    batch_size: int = like(LoadOptions, "batch_size", default=2)
    quiet: bool = like(RunOptions, "quiet")

    def __post_init__(self) -> None:
        _ = self.drafts
        _ = self.pace
        self._check_input()
        if self.output_dir == STDOUT:
            raise UsageError("-o -: stdout has the lines already; name a folder")
        if self.diarize and self.words and self.output_dir is None:
            raise UsageError(
                "--words writes words before their speakers are known: leave out --words or --diarize, or "
                "add -o FOLDER for files with speakers"
            )
        self.check_speakers()
        self.check_search()

    def _check_input(self) -> None:
        if self.audio not in (None, "-"):
            raise UsageError(
                f"listen takes - for stdin, or nothing for the microphone, not {self.audio}: play back a "
                "recording with --replay FILE, or use `forescribe transcribe FILE`"
            )
        inputs = {"- (stdin)": self.audio, "--replay": self.replay, "--input": self.input}
        given = [name for name, value in inputs.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are two inputs: choose one of them")

    @property
    def pace(self) -> float | None:
        """The factor of --speed; None for no pace. Raises UsageError."""
        try:
            factor = 0.0 if self.speed.lower() == "max" else float(self.speed)
        except ValueError:
            factor = math.nan
        if not 0 <= factor <= 1000:
            raise UsageError(f"--speed {self.speed} is neither max nor a number from 0 to 1000")
        return factor or None

    @property
    def labels(self) -> bool:
        """Whether lines have speakers."""
        return self.diarize and not self.words

    @property
    def formats(self) -> str:
        """The output formats; `all` includes rttm if there are speakers."""
        more = ",rttm" if self.diarize and "all" in self.output_format.lower() else ""
        return self.output_format + more

    @property
    def stem(self) -> str:
        """The name of the files: of a recording its own, else the time."""
        if self.replay is not None:
            return f"{Path(self.replay).stem}-live"
        return time.strftime("live-%Y-%m-%d-%H%M%S")

    def live(self) -> LiveOptions:
        """The options of the stream."""
        from forescribe.asr.decode.options import Guards
        from forescribe.asr.live.events import LiveOptions, TurnDetection

        eagerness: Literal["auto"] | None = "auto" if self.turns == "sentence" else None
        words = bool(self.word_timestamps) or self.diarize
        return LiveOptions(
            replace(self.decoding, words=words, guards=Guards()),
            step_s=self.step,
            delay=self.delay,
            turns=None
            if self.turns == "none"
            else TurnDetection(silence_s=self.silence, eagerness=eagerness),
            speech=self.labels,
        )


@takes(ListenOptions)
def listen(**values: Any) -> None:
    """Write down what is being said: from a microphone, or from a program before a pipe.

    Lines go to stdout, text that may still change to stderr. Ctrl-C finishes the turn and writes the files
    of -o. A pipe holds samples (s16le) or a wav file, as of `ffmpeg -i URL -f s16le -ac 1 -ar 16000 -`."""
    options = ListenOptions(**values)
    if options.list_devices:
        from forescribe.asr.audio.arriving import input_devices

        for line in input_devices():
            typer.echo(visible(line))
        return
    from .console import Console

    console = Console(quiet=options.quiet)
    options = replace(options, language=codes_of(options.language, console.notice))
    outputs = _outputs(options)
    arrival = _arrival(options)
    with Stop(ENDING) as stop:
        with stop.interruptible():
            if options.replay is None:  # a recording is played back once there is a model
                arrival.check(CHECK_S)
            console.status("loading the model")
            from forescribe.asr.live.record import LiveRecord

            from .live_session import LiveSession
            from .live_text import LiveText

            diarizer = None  # that of the files
            if options.diarize and outputs is not None:
                network = not options.local_files_only
                diarizer = options.load_diarizer(options.device, network)
            engine = _engine(options, console, diarizer)
        lockstep = options.replay is not None and options.pace is None
        text = LiveText(console, words=options.words)
        with LiveRecord(audio=diarizer is not None or options.keep_audio) as record:
            files = outputs is not None
            session = LiveSession(console, arrival, engine, record, text, stop, files)
            with engine:
                console.status("listening; Ctrl-C ends")
                error = session.run(lockstep=lockstep)
            if error is not None and (isinstance(error, UsageError) or not record.sample_count):
                raise error
            if outputs is not None:
                waits: Json = {
                    "step_s": options.step,
                    "delay": options.delay,
                    "turns": options.turns,
                }
                transcript = record.transcript({"live": waits})
                warnings = (*arrival.notices, *transcript.warnings)
                transcript = replace(transcript, warnings=warnings)
                _write(options, console, outputs, record, transcript, diarizer)
        session.summarise()
        if error is not None:
            raise error
        if text.closed:
            raise BrokenPipeError
    if text.failed:
        raise typer.Exit(1)


def _arrival(options: ListenOptions) -> Arrival:
    from forescribe.asr.audio.arriving import microphone, piped, replayed

    if options.replay is not None:
        return replayed(options.replay, options.pace)
    if options.audio is None:
        device = options.input
        return microphone(int(device) if device and device.isdecimal() else device)
    if sys.stdin.isatty():
        raise UsageError(
            "stdin is a terminal: pipe audio in, as in `arecord -f S16_LE -r 16000 | forescribe listen -`"
        )
    return piped(cast(BufferedReader, sys.stdin.buffer))


def _outputs(options: ListenOptions) -> Outputs | None:
    """Where files go, checked before anything is loaded; None for no files."""
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.storage.stores import Stores

    outputs = None
    if options.output_dir is not None:
        outputs = Outputs.plan((), options.output_dir, options.formats, stores=Stores())
    if options.keep_audio and (outputs is None or outputs.folder is None):
        raise UsageError("--keep-audio needs a folder of this machine: add -o FOLDER")
    return outputs


def _engine(options: ListenOptions, console: Console, diarizer: Diarizer | None) -> LiveEngine:
    """The model, and what finds the speakers of lines; `diarizer` is that of the files."""
    from forescribe.asr.model.presets import check_request, resolve

    from .live_session import LiveEngine

    check_request(resolve(options.model, options.draft).target, options.language, options.task)
    transcriber, speakers = options.load(console.notice), None
    if options.labels:
        from forescribe.diarize.engines.online import OnlineSpeakers
        from forescribe.diarize.engines.registry import load_online
        from forescribe.diarize.turns import anonymous

        online = load_online(diarizer, device=options.device)
        speakers = OnlineSpeakers(online, anonymous, options.known_people, options.bounds.most)
    return LiveEngine(transcriber, options.live(), speakers)


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

    stem = _free(outputs.folder, options.stem, (*outputs.formats, "flac"))
    error = None
    if diarizer is not None and record.sample_count:
        console.status("finding the speakers")
        from forescribe.diarize.speaker_finder import SpeakerOnlyTranscriber

        finder = SpeakerOnlyTranscriber(diarizer, options.bounds, options.known_people, transcript)
        (outcome,) = finder.transcribe([record.sound(stem)])
        transcript, error = outcome.transcript or transcript, outcome.error
    if transcript.diarized:  # what rttm calls it
        transcript = replace(transcript, settings={**transcript.settings, RECORDING: stem})
    texts = [(f"{stem}.{f.name}", rendered(f, transcript, stem)) for f in formats(outputs.formats)]
    for name, content in texts:
        outputs.ledger.destination.put(name, content)
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


def _free(folder: Path | None, stem: str, extensions: Iterable[str]) -> str:
    """A name that no file of the folder has yet."""
    name, number = stem, 1
    while folder is not None and any((folder / f"{name}.{e}").exists() for e in extensions):
        number += 1
        name = f"{stem}-{number}"
    return name
