"""The options that several commands share, by record: names, help, defaults, checks and what is loaded by
them. Those of decoding are declared in `asr.decode.options`.

A command's record inherits them, or takes one of them with `like`. Knows nothing of individual commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from forescribe.asr.decode.declared import AUTO as AUTO
from forescribe.asr.decode.declared import whole_or_auto
from forescribe.asr.decode.options import DECLARED, Options
from forescribe.asr.errors import UsageError

from .option_records import DIAGNOSTICS, INPUT, MODEL, OUTPUT, PERFORMANCE, SPEAKERS, opt

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.formats.transcript_parts import Json
    from forescribe.diarize.diarizer import Bounds, Diarizer
    from forescribe.diarize.known_speakers import KnownSpeaker

MAX_GAMMA = 64

RECORDINGS = (
    "Recordings or videos, folders, patterns ('calls/**/*.mp3') or lists (a .jsonl file with "
    "`audio_filepath` in each line), as paths or URLs (s3://, gs://, az://, hf://, https://); - reads stdin."
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Recordings to results in a folder."""

    recursive: bool = opt(INPUT, "-r", "Search folders recursively.", False)
    spool: str | None = opt(
        INPUT,
        "DIR",
        "Folder for copies of fetched recordings, which take half of its free space at most.",
        shown="TMPDIR or /var/tmp",
    )
    output_dir: str = opt(
        OUTPUT,
        "-o DIR",
        "Folder for results, here or in object storage (s3://, gs://, az://), or - for stdout.",
        ".",
    )
    overwrite: bool = opt(
        OUTPUT,
        "--overwrite/--resume",
        "Replace results, or skip those that are up to date (default).",
        False,
    )
    output_format: str = opt(
        OUTPUT,
        "-f FORMAT,...",
        "Any of txt, srt, vtt, tsv, json, rttm, md, docx, or all: the first five.",
        "all",
        shown="all",
    )
    quiet: bool = opt(
        DIAGNOSTICS, "-q", "Show errors only: no progress, no changing text, no summary.", False
    )
    records: bool = opt(
        DIAGNOSTICS, "", "Print a line of JSON about each recording; implies --quiet.", False
    )


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Results for programs."""

    json: bool = opt(DIAGNOSTICS, "", "Print the results as JSON.", False)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Target and draft."""

    model: str | None = opt(
        MODEL,
        "--model --whisper-model -m MODEL",
        "Preset (see `forescribe models`), Hugging Face id or local folder.",
        shown="large",
    )
    draft: str | None = opt(
        MODEL,
        "--draft --draft-model MODEL",
        "Draft model, named like --model; `none`: by lookup.",
        shown="its own",
    )
    local_files_only: bool = opt(
        MODEL, "", "Use downloaded weights only; never access the network.", False
    )


FLAGS = {flag.name: flag for own in DECLARED.values() for flag in own.flags}
"""The flags of decoding, as `asr.decode.options` declares them, by their names in a record."""

Record = TypeVar("Record")


def flag(name: str, help: str | None = None, *, names: str | None = None) -> Any:
    """Declare a field that is an option of decoding; with other words of help, or other spellings."""
    own = FLAGS[name]
    return opt(own.section, names or own.names, help or own.help, own.default, shown=own.shown)


def decodes(*names: str, live: bool = False) -> Callable[[type[Record]], type[Record]]:
    """Add options of decoding to the fields of a record that has `DecodingOptions`, below `@dataclass`:
    those named, those of live text, or all of them."""
    wanted = names or [name for name, own in FLAGS.items() if own.live or not live]

    def add(record: type[Record]) -> type[Record]:
        known = {f.name for f in fields(DecodingOptions)} | record.__dict__.keys()
        for name in [name for name in wanted if name not in known]:
            kind = FLAGS[name].kind
            record.__annotations__[name] = kind if FLAGS[name].default is not None else kind | None
            setattr(record, name, flag(name))
        return record

    return add


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """What is decoded, by every command that transcribes."""

    language: str | None = flag("language")
    task: str = flag("task")

    @cached_property
    def decoding(self) -> Options:
        """The options of a transcription call. Raises UsageError."""
        return Options.typed(
            {f.name: getattr(self, f.name) for f in fields(self) if f.name in FLAGS}
        )


MIX, SPLIT = "mix", "split"


@dataclass(frozen=True, kw_only=True)
class SpeakerOptions:
    """How speakers are found and named."""

    diarize = True  # always, unless a command has an option for it
    channels = MIX  # likewise; `SPLIT` where each channel is one speaker
    diarizer: str = opt(
        SPEAKERS,
        "ENGINE",
        "community-1, embedded, another package's engine or a folder. auto: community-1 if it is "
        "downloaded, else embedded.",
        AUTO,
    )
    num_speakers: int | None = opt(
        SPEAKERS, "--num-speakers --speaker-num N", "Exact number of speakers, if known.", min=1
    )
    min_speakers: int | None = opt(SPEAKERS, "N", "Minimum number of speakers.", min=1)
    max_speakers: int | None = opt(SPEAKERS, "N", "Maximum number of speakers.", min=1)
    known: bool = opt(
        SPEAKERS, "", "Name the people who were enrolled with `forescribe speakers add`.", False
    )

    def check_speakers(self) -> None:
        """Raises UsageError for options that contradict each other, and for `known` without enrolled
        voices."""
        from forescribe.diarize.diarizer import Bounds

        if self.channels not in (MIX, SPLIT):
            raise UsageError(f"--channels {self.channels} is neither {MIX} nor {SPLIT}")
        if self.diarize and self.channels == SPLIT:
            raise UsageError(
                "--channels split: each channel is a speaker already; leave out --diarize"
            )
        bounded = self.bounds != Bounds()
        if not self.diarize and (self.known or bounded):
            raise UsageError("a number of speakers and --known need --diarize")
        if self.known and not self.known_people:
            raise UsageError(
                "--known: no speaker is enrolled; enrol one with `forescribe speakers add`"
            )

    @cached_property
    def bounds(self) -> Bounds:
        """The number of speakers. Raises UsageError for bounds that contradict each other."""
        from forescribe.diarize.diarizer import Bounds

        return Bounds(self.num_speakers, self.min_speakers, self.max_speakers)

    @property
    def names_speakers(self) -> bool:
        """Whether results name speakers."""
        return self.diarize or self.channels == SPLIT

    def speaker_settings(self, *, network: bool) -> dict[str, Json]:
        """What decides the names of speakers, for a result's fingerprint: the engine that will run and
        the known voices. Raises what `registry.resolve` raises."""
        from forescribe.diarize.engines.registry import resolve

        values: dict[str, Json] = {"channels": self.channels}
        if self.diarize:
            values |= {
                "diarizer": str(resolve(self.diarizer, network=network)),
                "speakers": [self.num_speakers, self.min_speakers, self.max_speakers],
                "known": [[k.name, k.encoder, k.samples] for k in self.known_people],
            }
        return values

    def add_speakers(self, device: str, network: bool) -> Callable[[Transcriber], BatchTranscriber]:
        """Load what adds speakers to a transcriber; the result returns a transcriber unchanged where no
        speakers are named. Raises what `load_diarizer` raises."""
        if self.channels == SPLIT:
            from forescribe.diarize.channels import ChannelTranscriber

            return ChannelTranscriber
        if not self.diarize:
            return lambda transcriber: transcriber
        from forescribe.diarize.speaker_finder import SpeakerFinder

        finder = SpeakerFinder(self.load_diarizer(device, network), self.bounds, self.known_people)
        return lambda transcriber: transcriber.with_speakers(finder)

    def load_diarizer(self, device: str, network: bool) -> Diarizer:
        """Load the diarizer. Raises what `registry.load` raises, and UsageError if voices are to be
        known and none of the enrolled people has one of this engine."""
        from forescribe.diarize.engines.registry import load

        diarizer = load(self.diarizer, device=device, network=network)
        if self.known and all(k.encoder != diarizer.engine.encoder for k in self.known_people):
            raise UsageError(
                f"--known: no speaker was enrolled with the engine {diarizer.engine.name} "
                f"({diarizer.engine.encoder or 'which keeps no voices'}); voices of other engines or "
                "versions cannot be compared: enrol with it by `forescribe speakers add`"
            )
        return diarizer

    @cached_property
    def known_people(self) -> Sequence[KnownSpeaker]:
        """The enrolled people whose names may be used."""
        if not self.known:
            return ()
        from forescribe.diarize.known_speakers import KnownSpeakers

        return KnownSpeakers().list()


@dataclass(frozen=True, kw_only=True)
class PerformanceOptions:
    """What changes the speed."""

    gamma: str = opt(
        PERFORMANCE, "N", f"Drafted tokens per round: 0 (off) to {MAX_GAMMA}, or auto.", AUTO
    )
    batch_size: int = opt(
        PERFORMANCE, "N", "Windows, or texts, decoded together.", 8, shown="8", min=1, max=1024
    )
    device: str = opt(
        PERFORMANCE, "DEVICE", "auto, cuda, cuda:N, hpu, mps or cpu.", AUTO, shown=AUTO
    )
    dtype: str = opt(
        PERFORMANCE,
        "TYPE",
        "Format of the weights: auto, float32, float16, bfloat16.",
        AUTO,
        shown=AUTO,
    )
    quantize: str | None = opt(
        PERFORMANCE,
        "TYPE",
        "none, or int8: the model's matrices in 8-bit integers, on CPUs with the native engine. Faster; "
        "words may differ.",
        shown="none",
    )
    draft_dtype: str = opt(
        PERFORMANCE, "TYPE", "Of the draft: as --dtype, or int8. Same text.", AUTO, shown=AUTO
    )

    @property
    def drafts(self) -> int | None:
        """Drafted tokens per round; None for auto. Raises UsageError."""
        return whole_or_auto("--gamma", self.gamma, 0, MAX_GAMMA)


@dataclass(frozen=True, kw_only=True)
class LoadOptions(ModelOptions, PerformanceOptions):
    """A model, and what computes it."""

    engine: str = opt(
        PERFORMANCE,
        "ENGINE",
        "Of the decoders: auto, native, lean or modules. Same text.",
        AUTO,
        shown=AUTO,
    )

    def load_arguments(self) -> dict[str, Any]:
        """What `Transcriber.load` and `TextGenerator.load` take alike."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "draft_dtype": self.draft_dtype,
            "quantize": self.quantize,
            "engine": self.engine,
            "gamma": self.drafts,
        }


@dataclass(frozen=True, kw_only=True)
class SpeechOptions(LoadOptions, DecodingOptions):
    """A speech model, and what it decodes."""

    def check_search(self) -> None:
        """Raises UsageError where the search, as far as it is known by now, contradicts other options: of
        drafts that are asked for nothing would come."""
        from forescribe.asr.model.presets import NO_DRAFT, beams_of, resolve
        from forescribe.speculative.models.hub import find

        target = resolve(self.model, NO_DRAFT).target
        decoding = self.decoding.settled(beams_of(target, find(target)))
        if decoding.beam_size is None or decoding.drafted:
            return
        found = f"{self.model or 'the model'} is searched with {decoding.beam_size} beams"
        if decoding.hint:
            raise UsageError(
                f"--reference-text is for the most probable words, and {found}: add --beam-size 1, or auto"
            )
        if self.drafts and self.draft in (None, NO_DRAFT):
            raise UsageError(
                f"--gamma is for drafts, and {found}, which are drafted by the model of --draft alone: add "
                "that, or --beam-size 1"
            )

    def load(self, tell: Callable[[str], None]) -> Transcriber:
        """Load it; `tell` is told what would make it faster. Raises ModelError, DeviceError, UsageError."""
        from forescribe.asr.decode.transcriber import Transcriber
        from forescribe.speculative.native.library import advice

        transcriber = Transcriber.load(
            self.model,
            # A text that is copied from takes the draft model's place.
            self.draft if self.decoding.hint is None else self.draft or "none",
            language=self.language,
            batch=self.batch_size,
            network=not self.local_files_only,
            beam_size=self.decoding.beam_size,
            **self.load_arguments(),
        )
        kind = transcriber.whisper.device.kind
        hint = advice(transcriber.context.forward, asked=self.engine, device=kind)
        if hint is not None:
            tell(hint)
        return transcriber


def codes_of(languages: str | None, tell: Callable[[str], None]) -> str | None:
    """The codes of the languages that a user names, told what is left out of them. Raises UsageError."""
    from forescribe.asr.model.languages import read_languages

    spoken = read_languages(languages)
    for note in spoken.notes:
        tell(note)
    return spoken.text
