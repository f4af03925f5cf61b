"""One text while it is written: tokens in, final text out.

Tokens are taken one by one, however many a round has brought, so where a text stops does not depend on
rounds, drafts or the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forescribe.speculative import checks
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Ranked, Sampling

from .detokenizer import Detokenizer
from .stops import Stops
from .vocabulary import Vocabulary

Ended = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True)
class Options:
    """How a text is to be written. The defaults are greedy, to the model's last position. Raises
    `RequestError` for impossible numbers."""

    max_tokens: int | None = None
    temperature: float = 0.0
    sampling: Sampling = Sampling()
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int = 0  # so many of the likeliest tokens are reported at each position
    gamma: int | None = None  # at most so many drafts per round; None: as the schedule says

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            checks.whole("max_tokens", self.max_tokens, 1, checks.ANY)
        checks.whole("logprobs", self.logprobs, 0, checks.ANY)
        for stop in self.stop:
            checks.text("a stop string", stop)
        Stops(self.stop)


@dataclass(frozen=True)
class Candidate:
    """A token that might stand at a position. `data` is what it adds to the text, which need not be
    whole characters; special tokens add nothing, and are shown by their names."""

    id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True)
class Token(Candidate):
    """A token of the text; `best` are the likeliest there, if they were asked for.

    Log-probabilities are those of the model with the penalties, before temperature and bounds.
    """

    best: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A text that has ended. `ids` are all tokens that were made, the one that ends it and those of a
    stop string included; `tokens` are those of the text. A `finish` of "failed" has an `error`, and its
    text is what was written before. `draft_error` is a fault of the draft, which has cost speed."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    finish: Ended
    prompt_tokens: int
    stop: str | None = None  # the stop string that ended it
    error: SpeculativeError | None = None
    draft_error: SpeculativeError | None = None


@dataclass
class Writing:
    """The text of one prompt, as far as it has come."""

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
        self._decoded = 0  # characters, those held back included
        self._waiting: list[tuple[int, Token]] = []  # with the place in the text that it begins at

    def grow(
        self, ids: Sequence[int], logprobs: Sequence[float], ranked: Ranked, begin: int = 0
    ) -> tuple[str, tuple[Token, ...]]:
        """Takes what is new in `ids`, which the text has from token `begin` on. Text and tokens that
        became final."""
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
        """What was held back, now that nothing follows."""
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
        # A token is told with the first of its text; one that begins behind a stop never is.
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
