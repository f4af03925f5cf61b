"""The audio of a session: bytes become samples, a live stream decodes them, and its text gets speakers.

`keep` waits for nothing; other methods may take time and are not for the event loop, and they are called one
at a time. `tell` is called on the threads of the stream and must not wait. Does not know sockets and
messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forescribe.asr.errors import ForescribeError
from forescribe.asr.live.formats import AudioInput

from ..errors import ApiError
from ..speech.serving import Serving
from .session import DIARIZE, PARAM, TRANSCRIPTION, SessionConfig

if TYPE_CHECKING:
    from forescribe.asr.live.events import Event, LiveOptions, LiveStats, Tell
    from forescribe.asr.live.stream import LiveStream
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.live_speakers import LiveSpeakers


class SessionAudio:
    """Used by one session."""

    def __init__(self, serving: Serving, tell: Tell) -> None:
        self.serving, self._tell = serving, tell
        self._config: SessionConfig | None = None
        self._stream: LiveStream | None = None
        self._speakers: LiveSpeakers | None = None
        self._kept: list[Samples] = []
        self._kept_count = 0  # samples

    def enrols(self, config: SessionConfig) -> bool:
        """Whether `use` has to wait for the network that hears voices."""
        return config.diarize and any(config.known) and self._known_change(config)

    def use(self, config: SessionConfig, options: LiveOptions) -> None:
        """Use this configuration, which means these options, from now on. Raises ApiError if it cannot be
        served; nothing is changed then."""
        speakers = self._speakers if config.diarize else None
        if config.diarize and (speakers is None or self._known_change(config)):
            device = self.serving.settings.device
            try:
                speakers = self.serving.speakers.live(self._tell, device, *config.known)
            except ApiError as error:
                param = f"{PARAM}.{TRANSCRIPTION}.{error.param}" if error.param else DIARIZE
                raise ApiError(error.code, error.message, param=param) from error
        if self._stream is None:
            self._stream = self.serving.live(options, self._heard)
        else:
            try:
                self._stream.configure(options)
            except ForescribeError as error:
                raise ApiError.of(error, param=PARAM) from error
        self._speakers = speakers
        if self._config is None or config.input.format != self._config.input.format:
            self._input = AudioInput(config.input.format.type, config.input.format.rate)
        self._config = config

    def _known_change(self, config: SessionConfig) -> bool:
        return self._config is None or config.known != self._config.known

    @property
    def bytes_per_s(self) -> int:
        return self._input.bytes_per_s

    @property
    def behind_s(self) -> float:
        """How many seconds of audio wait for the model, or for their speakers."""
        speakers_s = 0.0 if self._speakers is None else self._speakers.behind_s
        return max(self.stream.behind_s, speakers_s)

    @property
    def stats(self) -> LiveStats | None:
        """What the stream has cost; None where there is none."""
        return None if self._stream is None else self._stream.stats

    @property
    def stream(self) -> LiveStream:
        assert self._stream is not None
        return self._stream

    def keep(self, data: bytes) -> bool:
        """Take the next bytes; whether they complete a step, which is to be fed. The way to a thread for each
        message takes longer than this."""
        self._add(self._input.push(data))
        return self._kept_count >= self.stream.wanted

    def _add(self, samples: Samples) -> None:
        if len(samples):  # a resampler may hold them
            self._kept.append(samples)
            self._kept_count += len(samples)

    def feed(self) -> float:
        """Look at what was kept; `behind_s`."""
        kept, self._kept, self._kept_count = self._kept, [], 0
        self.stream.feed(np.concatenate([np.zeros(0, np.float32), *kept]))
        return self.behind_s

    def commit(self) -> int | None:
        """End the item; None where there is too little of it."""
        self._flush()
        return self.stream.commit()

    def _flush(self) -> None:
        self._add(self._input.flush())
        self.feed()

    def clear(self) -> None:
        """Drop the item that is being spoken."""
        self._kept, self._kept_count = [], 0
        self._input.clear()
        self.stream.clear()

    def finish(self) -> None:
        """No more audio comes; the text of open items follows. Nothing where there is no stream."""
        if self._stream is not None:
            self._flush()
            self.stream.finish()

    def cancel(self) -> None:
        """Drop everything; may be called at any time."""
        if self._speakers is not None:
            self._speakers.cancel()
        if self._stream is not None:
            self._stream.cancel()

    def _heard(self, event: Event) -> None:
        speakers = self._speakers
        (self._tell if speakers is None else speakers)(event)
