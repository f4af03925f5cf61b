"""The configuration of a session: what a client has asked for, checked, and the options that it means.

The fields of a transcription are those of an upload, with the same meaning. What this server cannot do is
refused by name. Does not know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field

from ..errors import ApiError, checked, invalid
from ..settings import NO_DIARIZER, Settings
from ..speech import forms
from ..speech.diarization import check_pairs
from ..speech.forms import Known, Languages, LiveForm, TranscriptionForm, VadConfig, check_model
from ..speech.serving import Serving
from ..wording import Frozen

if TYPE_CHECKING:
    from forescribe.asr.live.events import LiveOptions

PARAM = "session"
"""What errors call the configuration."""

TRANSCRIPTION = "audio.input.transcription"

DIARIZE = f"{PARAM}.{TRANSCRIPTION}.diarize"

KNOWN = ("known_speaker_names", "known_speaker_references")
"""The fields of people who are recognised."""

LOGPROBS = "item.input_audio_transcription.logprobs"
HYPOTHESES = "forescribe.hypothesis"
"""Not OpenAI's: an event with the whole text so far after each decode."""


class Pcm(Frozen):
    """16 bits, little-endian, mono. OpenAI has 24,000 Hz only."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000, 16000, 8000] = 24000


class G711(Frozen):
    """8,000 Hz, mu-law or A-law."""

    type: Literal["audio/pcmu", "audio/pcma"]
    rate: Literal[8000] = 8000


class Transcription(LiveForm):
    """How the audio is transcribed. `model` is any name of the loaded model. Not OpenAI's: `diarize` asks for
    the speakers of segments, known ones by the names and references of an upload."""

    languages: Languages = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] = "medium"
    diarize: bool = False
    known_speaker_names: Known = ()
    known_speaker_references: Known = ()


class Detection(Frozen):
    """`create_response` and `interrupt_response` concern answers of a model, which there are none of."""

    create_response: bool | None = None
    interrupt_response: bool | None = None


class ServerVad(Detection, VadConfig):
    """A turn ends after a silence."""

    silence_duration_ms: int = Field(500, ge=1, le=15000)
    idle_timeout_ms: None = None


class SemanticVad(Detection):
    """A turn ends after a short silence behind the end of a sentence, and later elsewhere."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"


class AudioInputConfig(Frozen):
    format: Annotated[Pcm | G711, Field(discriminator="type")] = Pcm()
    transcription: Transcription
    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] | None = None
    noise_reduction: None = None


class AudioConfig(Frozen):
    input: AudioInputConfig


class SessionConfig(Frozen):
    """The effective configuration of a session."""

    type: Literal["transcription"] = "transcription"
    audio: AudioConfig
    include: tuple[
        Literal["item.input_audio_transcription.logprobs", "forescribe.hypothesis"], ...
    ] = ()

    @property
    def input(self) -> AudioInputConfig:
        return self.audio.input

    @property
    def diarize(self) -> bool:
        """Whether segments are to have speakers."""
        return self.input.transcription.diarize

    @property
    def known(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names and the references of people who are recognised."""
        wanted = self.input.transcription
        return wanted.known_speaker_names, wanted.known_speaker_references

    def updated(self, given: Mapping[str, Any], *, started: bool = False) -> Self:
        """With what a client has given. Format, model and speakers cannot change once audio has come
        (`started`). Raises ApiError `invalid_value` with the place."""
        state = _merged(self.model_dump(mode="json", exclude_none=True), given)
        new = checked(type(self), state, f"{PARAM}.")
        for name, value in new._fixed.items():
            if started and value != self._fixed[name]:
                text = "cannot change once audio has come; open another session"
                raise invalid(f"{PARAM}.audio.input.{name}", text)
        return new

    @property
    def _fixed(self) -> dict[str, object]:
        """What cannot change once audio has come, by its place in `audio.input`."""
        return {
            "format": self.input.format,
            "transcription.model": self.input.transcription.model,
            "transcription.diarize": self.diarize,
            f"transcription.{KNOWN[0]}": self.known,
        }

    def options(self, serving: Serving, settings: Settings) -> LiveOptions:
        """Raises ApiError `invalid_value` or `model_not_found` with the field that cannot be served."""
        from forescribe.asr.live.events import LiveOptions, TurnDetection

        wanted, detection = self.input.transcription, self.input.turn_detection
        fields = wanted.model_dump(exclude={"delay", "diarize", *KNOWN})
        try:
            check_model(wanted.model, settings)
            if any(self.known) and not self.diarize:
                raise invalid(KNOWN[0], "needs diarize")
            forms.check_speaker_names(wanted.known_speaker_names)
            check_pairs(*self.known)
            options = forms.transcription(TranscriptionForm(**fields), serving, settings)
        except ApiError as error:
            param = f"{PARAM}.{TRANSCRIPTION}.{error.param}"
            raise ApiError(error.code, error.message, param=param) from error
        if self.diarize and settings.diarizer == NO_DIARIZER:
            raise invalid(DIARIZE, "this server does not find speakers")
        turns = None
        if isinstance(detection, SemanticVad):
            turns = TurnDetection(eagerness=detection.eagerness)
        elif detection is not None:
            turns = TurnDetection(
                detection.threshold,
                detection.prefix_padding_ms / 1000,
                detection.silence_duration_ms / 1000,
            )
        if wanted.diarize:  # segments end where the speaker changes
            options = replace(options, words=True)
        return LiveOptions(options, delay=wanted.delay, turns=turns, speech=wanted.diarize)

    def to_dict(self) -> dict[str, Any]:
        """As events show it; references, which are long and personal, are left out."""
        hidden = {"audio": {"input": {"transcription": {KNOWN[1]}}}}
        state = self.model_dump(mode="json", exclude_none=True, exclude=hidden)
        state["include"] = state["include"] or None
        shown = {"noise_reduction": None, "turn_detection": None, **state["audio"]["input"]}
        return {**state, "audio": {"input": shown}}


def initial(model: str) -> SessionConfig:
    """The configuration of a client that asks for nothing but a name of the model: words while they are
    spoken, and the client ends items."""
    transcription = Transcription.model_validate({"model": model})
    return SessionConfig(audio=AudioConfig(input=AudioInputConfig(transcription=transcription)))


def _merged(state: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged, unless `type` makes another one of them; everything else is replaced, by its
    default where it is null."""
    result = dict(state)
    for name, value in given.items():
        old = state.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            same = value.get("type", old.get("type")) == old.get("type")
            result[name] = _merged(old, value) if same else value
        else:
            result[name] = value
    return result
