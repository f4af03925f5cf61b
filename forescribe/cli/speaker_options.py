"""What a command was asked about speakers, checked before anything is loaded.

Importing it is light; engines come in with `load`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Json
from forescribe.diarize.diarizer import Bounds
from forescribe.diarize.speakers.known_speakers import KnownSpeaker, KnownSpeakers

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Transcribes as Runs
    from forescribe.diarize.diarizer import Diarizer
    from forescribe.diarize.speakers.linked_speakers import LinkedSpeakers
    from forescribe.diarize.transcripts.diarizing_transcriber import SupportsTranscribe

MIX, SPLIT = "mix", "split"


@dataclass(frozen=True)
class Asked:
    """`diarizer` names the engine; None asks for no voices. `channels` is `mix` or `split`, where each
    channel is a speaker. `known` uses the voices that were enrolled, `link` gives one person one label
    in all recordings.

    Raises UsageError for what contradicts itself, and for `known` where nobody is.
    """

    diarizer: str | None = None
    bounds: Bounds = field(default_factory=Bounds)
    known: bool = False
    channels: str = MIX
    link: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (MIX, SPLIT):
            raise UsageError(f"--channels {self.channels} is neither {MIX} nor {SPLIT}")
        if self.diarizer is not None and self.channels == SPLIT:
            raise UsageError(
                "--channels split: each channel is a speaker already; leave out --diarize"
            )
        if self.diarizer is None and (self.known or self.link or self.bounds != Bounds()):
            raise UsageError("a number of speakers, --known and --link-speakers need --diarize")
        if self.known and not KnownSpeakers().list():
            raise UsageError("--known: nobody is; enrol somebody with `forescribe speakers add`")

    @property
    def speakers(self) -> bool:
        """Whether results will name speakers."""
        return self.diarizer is not None or self.channels == SPLIT

    def settings(self, *, network: bool) -> dict[str, Json]:
        """What decides who is named, for a result's fingerprint: the engine that will run, and the
        voices that are known. Raises what `engines.resolve` raises."""
        from forescribe.diarize.engines.registry import resolve

        told: dict[str, Json] = {"channels": self.channels}
        if self.diarizer is not None:
            bounds = self.bounds
            told |= {
                "diarizer": str(resolve(self.diarizer, network=network)),
                "speakers": [bounds.exactly, bounds.at_least, bounds.at_most],
                "known": [[k.name, k.encoder, k.samples] for k in self.known_people()],
            }
            if self.link:  # else older results keep their fingerprints
                told["link"] = True
        return told

    def load(
        self, *, device: str = "auto", network: bool = True, folder: Path | None = None
    ) -> Callable[[SupportsTranscribe], Runs]:
        """What puts speakers on a transcriber's words; a transcriber itself where nobody asked. `folder`
        is that of the results. Raises what `engine` and `people` raise."""
        if self.channels == SPLIT:
            from forescribe.diarize.transcripts.channel_transcriber import ChannelTranscriber

            return ChannelTranscriber
        if self.diarizer is None:
            return lambda transcriber: transcriber
        engine, bounds = self.engine(device, network), self.bounds
        known, people = self.known_people(), self.people(folder)
        from forescribe.diarize.transcripts.diarizing_transcriber import DiarizingTranscriber

        return lambda transcriber: DiarizingTranscriber(transcriber, engine, bounds, known, people)

    def engine(self, device: str, network: bool) -> Diarizer:
        """The diarizer, ready to work. Raises what `engines.load` raises, and UsageError where voices
        are to be linked and it keeps none, or where nobody is known to it by a vector of its own."""
        from forescribe.diarize.engines.registry import load

        assert self.diarizer is not None
        found = load(self.diarizer, device=device, network=network)
        if self.link and found.engine.encoder is None:
            raise UsageError(
                f"--link-speakers: the engine {found.engine.name} keeps no voices; take another "
                "--diarizer"
            )
        if self.known and all(k.encoder != found.engine.encoder for k in self.known_people()):
            raise UsageError(
                f"--known: nobody was enrolled with the engine {found.engine.name} "
                f"({found.engine.encoder or 'which keeps no voices'}); voices of other engines or "
                "versions cannot be compared: enrol with it by `forescribe speakers add`"
            )
        return found

    def people(self, folder: Path | None) -> LinkedSpeakers | None:
        """Who was heard before, by the folder of the results; None where nobody is to be linked."""
        if not self.link:
            return None
        from forescribe.diarize.speakers.linked_speakers import LinkedSpeakers

        return LinkedSpeakers(folder)

    def known_people(self) -> Sequence[KnownSpeaker]:
        """Whose names may be used."""
        return KnownSpeakers().list() if self.known else ()
