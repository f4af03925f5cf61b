"""One text while it is written: tokens in, events with final text out.

Tokens are processed one by one, however many a round has written, so where a text stops does not depend
on rounds, drafts or the batch. No event holds a partial character (`Detokenizer`), a text that a later token
changes, or the beginning of a stop string (`Stops`). Knows one text and its vocabulary; nothing of models or
of other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forescribe.speculative import requests
from forescribe.speculative.errors import WRITING, RequestError, SpeculativeError, fault
from forescribe.speculative.requests import Finish, Partial, Ranked, Result, Sampling

from .vocabulary import Vocabulary

CONTEXT = 6
"""Tokens of the prompt that determine the text of the first new one: whether it begins with a space."""

HELD = 16
"""Most tokens held back without a whole character. No character has as many, so it is output as it is."""

BROKEN = "\ufffd"
"""What tokenizers write for a part of a character."""

Ended = Literal["stop", "length", "cancelled", "failed"]
"""Why a text has ended."""


@dataclass(frozen=True)
class Options:
    """How a text is written. The default is greedy, up to the model's last position. Raises
    `RequestError` for impossible numbers."""

    max_tokens: int | None = None
    temperature: float = 0.0
    sampling: Sampling = Sampling()
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int = 0  # how many of the most likely tokens are reported at each position
    gamma: int | None = None  # the most drafts per round; None: as the schedule chooses

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            requests.check_whole("max_tokens", self.max_tokens, 1, requests.ANY)
        requests.check_whole("logprobs", self.logprobs, 0, requests.ANY)
        for stop in self.stop:
            requests.check_text("a stop string", stop)
        Stops(self.stop)


@dataclass(frozen=True)
class Candidate:
    """A possible token at a position. `data` are the bytes that it adds to the text, which need not be
    whole characters; special tokens add none, and `text` is their name."""

    id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True)
class Token(Candidate):
    """A token of the text; `best` are the most likely ones at its position, if requested.

    Log-probabilities are those of the model with the penalties, before temperature and bounds.
    """

    best: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A text that has ended. `ids` are all decoded tokens, including the end-of-text token and those of a
    stop string; `tokens` are those of the text. Where `finish` is "failed" there is an `error`, and the
    text is what was written before. `draft_error` is a fault of the draft, which only costs speed."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    finish: Ended
    prompt_tokens: int
    stop: str | None = None  # the stop string that ended it
    error: SpeculativeError | None = None
    draft_error: SpeculativeError | None = None


@dataclass(frozen=True)
class Event:
    """What has become final of a text; the last event of a text has its completion."""

    number: int  # as `TextGenerator.submit` returned it
    text: str
    tokens: tuple[Token, ...]
    completion: Completion | None = None


@dataclass
class TextStream:
    """The text of one prompt, as far as it is written."""

    number: int
    prompt: tuple[int, ...]
    options: Options
    vocabulary: Vocabulary
    ends: frozenset[int]
    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.vocabulary, self.prompt)
        self._stops = Stops(self.options.stop)
        self._decoded = 0  # characters, including those held back
        # With the offset in the text at which it begins.
        self._waiting: list[tuple[int, Token]] = []

    def extend(self, partial: Partial) -> Event | None:
        """Adds the tokens of an unfinished row. Returns what became final, None where nothing did; with
        a completion where a stop string or a fault ends the text."""
        try:
            text, tokens = self.grow(
                partial.tokens, partial.logprobs, partial.ranked, partial.begin
            )
        except Exception as error:
            return self._fault(error)
        if self.stopped is not None:
            return Event(self.number, text, tokens, self.completion("stop"))
        return Event(self.number, text, tokens) if text or tokens else None

    def finish(self, result: Result) -> Event:
        """The last event of the text. An exception while detokenizing fails this text only."""
        try:
            text, tokens = self.grow(result.tokens, result.logprobs, result.ranked)
            rest, more = self.end()
        except Exception as error:
            return self._fault(error)
        ended: Ended = "length"
        if self.stopped is not None or result.finish is Finish.STOP:
            ended = "stop"
        elif result.error is not None:
            ended = "failed"
        reason = result.error if ended == "failed" else None
        completion = self.completion(ended, reason, result.draft_error)
        return Event(self.number, text + rest, tokens + more, completion)

    def _fault(self, error: Exception) -> Event:
        failed = fault(WRITING, error)
        return Event(self.number, "", (), self.completion("failed", failed))

    def grow(
        self, ids: Sequence[int], logprobs: Sequence[float], ranked: Ranked, begin: int = 0
    ) -> tuple[str, tuple[Token, ...]]:
        """Adds what is new in `ids`, the tokens of the text from token `begin` on. Returns the text and
        the tokens that became final."""
        before, known = self.text, len(self.tokens)
        for i in range(len(self.ids) - begin, len(ids)):
            self.ids.append(ids[i])
            if ids[i] in self.ends:
                break
            token = self._token(ids[i], logprobs[i], ranked[i] if ranked else ())
            self._waiting.append((self._decoded, token))
            self._add(self._detokenizer.push(ids[i]))
            if self.stopped is not None:
                break
        return self.text[len(before) :], tuple(self.tokens[known:])

    def end(self) -> tuple[str, tuple[Token, ...]]:
        """Returns what was held back, at the end of the text."""
        before, known = self.text, len(self.tokens)
        if self.stopped is None:
            self._add(self._detokenizer.flush())
        if self.stopped is None:
            self.text += self._stops.flush()
            self.tokens += [token for _, token in self._waiting]
            self._waiting.clear()
        return self.text[len(before) :], tuple(self.tokens[known:])

    def completion(
        self,
        finish: Ended,
        error: SpeculativeError | None = None,
        draft_error: SpeculativeError | None = None,
    ) -> Completion:
        return Completion(
            text=self.text,
            ids=tuple(self.ids),
            tokens=tuple(self.tokens),
            finish=finish,
            prompt_tokens=len(self.prompt),
            stop=self.stopped,
            error=error,
            draft_error=draft_error,
        )

    def _add(self, text: str) -> None:
        self._decoded += len(text)
        final, self.stopped = self._stops.push(text)
        self.text += final
        # A token becomes final with its first character; one that begins after a stop string never does.
        while self._waiting and self._waiting[0][0] < len(self.text):
            self.tokens.append(self._waiting.pop(0)[1])

    def _token(self, token: int, logprob: float, best: Sequence[tuple[int, float]]) -> Token:
        text, data = self.vocabulary.text, self.vocabulary.data
        return Token(
            id=token,
            text=text(token),
            data=data(token),
            logprob=logprob,
            best=tuple(Candidate(id, text(id), data(id), each) for id, each in best),
        )


class Stops:
    """Holds back what may be the beginning of a stop string, so that output is never retracted.

    The text ends before the stop string that is complete first; of several that end at the same place,
    the one that begins first. So the cut does not depend on how the text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise RequestError("a stop string is empty: it would stop at once")
        self.stops = tuple(stops)
        self.held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is final now, and the stop that ended it, if one did."""
        text = self.held + text
        found = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self.held = ""
            return text[:at], stop
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Returns what is held back, at the end of the text."""
        held, self.held = self.held, ""
        return held


class Detokenizer:
    """Decodes the last few tokens with and without the new one; the difference is its text.

    Tokens cannot be decoded one by one: a character may consist of several, and spaces depend on the
    tokens before.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.ids = list(prompt[-CONTEXT:])
        # ids[begin:read] are context; ids[read:] have no text yet.
        self.begin, self.read = 0, len(self.ids)

    def push(self, token: int) -> str:
        """The text that became final with this token; often a word, sometimes nothing."""
        self.ids.append(token)
        text = self._new()
        if text.endswith(BROKEN) and len(self.ids) - self.read < HELD:
            return ""
        if text:
            self.begin, self.read = self.read, len(self.ids)
        return text

    def flush(self) -> str:
        """Returns the rest at the end of the text."""
        text = self._new()
        self.begin, self.read = self.read, len(self.ids)
        return text

    def _new(self) -> str:
        decode = self.vocabulary.decode
        return decode(self.ids[self.begin :])[len(decode(self.ids[self.begin : self.read])) :]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
