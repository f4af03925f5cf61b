"""The two ways of the one driver: a call in the caller's thread, and a session in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from forescribe.asr.audio.inputs import Input
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.results import Part
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber

SOON = 120.0


@dataclass
class Ear:
    """A listener that keeps what it hears."""

    parts: list[Part] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    at_part: Callable[[], None] = lambda: None
    at_end: Callable[[], None] = lambda: None

    def progressed(self, part: Part) -> None:
        self.parts.append(part)
        self.at_part()

    def ended(self, outcome: Outcome | None) -> None:
        self.outcomes.append(outcome)
        self.done.set()
        self.at_end()

    def outcome(self) -> Outcome | None:
        assert self.done.wait(SOON)
        assert len(self.outcomes) == 1
        return self.outcomes[0]


@contextmanager
def running(session: Session) -> Iterator[Session]:
    thread = threading.Thread(target=session.run)
    thread.start()
    try:
        yield session
    finally:
        session.close()
        thread.join(SOON)
        assert not thread.is_alive()


def called(one: Transcriber, sources: Sequence[Input], options: Options) -> list[Outcome]:
    found = {id(outcome.source): outcome for outcome in one.transcribe(sources, options)}
    return [found[id(source)] for source in sources]


def in_session(
    one: Transcriber, sources: Sequence[Input], options: Options, ears: list[Ear] | None = None
) -> list[Outcome]:
    """All queued before the session runs, so that they share the encoder and the engine."""
    session, ears = Session(one.context), ears or [Ear() for _ in sources]
    for source, ear in zip(sources, ears, strict=True):
        session.submit(source, options, ear)
    with running(session):
        outcomes = [ear.outcome() for ear in ears]
    assert not any(thread.name.startswith("reader-") for thread in threading.enumerate())
    assert session.idle and not (session.reading.readings or session.driver.encoded)
    return [outcome for outcome in outcomes if outcome is not None]


WAYS = pytest.mark.parametrize("way", [called, in_session], ids=["call", "session"])
