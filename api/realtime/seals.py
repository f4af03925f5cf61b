"""Values that clients keep for the server: signed, so nothing has to be stored, and every worker and replica
with the same settings reads what another has made.

    seal = Seal.of(settings, b"client secrets")
    text = seal.close(value)            # JSON in the characters that a header's token may have
    value = seal.open(text)             # raises ValueError

Whoever has a text can read it, and cannot change it.
"""

from __future__ import annotations

import base64
import hmac
import json
import zlib
from typing import TYPE_CHECKING, Any

from ..settings import Settings

if TYPE_CHECKING:
    from forescribe.diarize.live_speakers import KeptVoices

MAX_PLAIN = 1 << 20
"""Bytes that a text is unpacked to."""

MAX_LABEL = 255
"""Characters of a speaker's label."""

VOICES_S = 24 * 3600
"""How long voices may be given back."""


class Seal:
    """`key` signs."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, settings: Settings, purpose: bytes) -> Seal:
        """With a key of what only the operator has: the hashes of all API keys, and the address of the
        database with its password. Without these anybody can seal."""
        hashes = sorted(each for rights in settings.api_keys.values() for each in rights.hashes)
        known = json.dumps([hashes, settings.database_url]).encode()
        return cls(hmac.digest(known, purpose, "sha256"))

    def close(self, value: Any) -> str:
        """Raises ValueError for more than `MAX_PLAIN` bytes of JSON."""
        plain = json.dumps(value).encode()
        if len(plain) > MAX_PLAIN:
            raise ValueError("too long")
        packed = zlib.compress(plain, 9)
        return _text(self._signature(packed) + packed)

    def open(self, text: str) -> Any:
        """Raises ValueError for what this key has not signed."""
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        size = len(self._signature(b""))
        signature, packed = data[:size], data[size:]
        if not hmac.compare_digest(signature, self._signature(packed)) or _text(data) != text:
            raise ValueError("not signed by this server")
        try:
            return json.loads(zlib.decompressobj().decompress(packed, MAX_PLAIN))
        except zlib.error as error:  # anybody may sign where there are no keys
            raise ValueError("not made by this server") from error

    def _signature(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")


def closed_voices(seal: Seal, kept: KeptVoices, now: float) -> str:
    """The speakers of a session so far; `now` is in Unix seconds."""
    voices = [
        (voice.label, voice.amount, voice.seconds, [float(f"{x:.5g}") for x in voice.sum])
        for voice in kept.voices
    ]
    return seal.close([kept.encoder, int(now) + VOICES_S, voices])


def opened_voices(seal: Seal, text: str, now: float) -> KeptVoices:
    """Raises ValueError for what `closed_voices` has not made, or too long ago."""
    from forescribe.diarize.diarizer import MOST_SPEAKERS
    from forescribe.diarize.live_speakers import KeptVoice, KeptVoices

    try:
        encoder, expires_at, voices = seal.open(text)
        if now >= expires_at:
            raise ValueError("too old")
        kept = tuple(
            KeptVoice(str(label)[:MAX_LABEL], float(amount), float(seconds), tuple(map(float, sum)))
            for label, amount, seconds, sum in voices[:MOST_SPEAKERS]
        )
    except (TypeError, LookupError, ArithmeticError) as error:
        # Anybody signs where there are no keys.
        raise ValueError("not made by this server") from error
    return KeptVoices(str(encoder), kept)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
