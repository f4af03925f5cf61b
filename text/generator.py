"""TextGenerator: prompts to text by speculative decoding, for unmodified language models.

    generator = TextGenerator.load("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", gamma=5)
    for completion in generator.generate(["Once upon a time"], Options(max_tokens=64)):
        print(completion.text)

All prompts share the engine's rows, and new ones may come at any time: `submit` from the thread that
calls `step`, which is how a service drives it. Greedy text equals plain decoding, token for token;
above temperature 0 its distribution does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import torch

from forescribe.speculative import checks
from forescribe.speculative.device import Device, choose
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.engine import faults
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.engine.stats import Stats
from forescribe.speculative.errors import BrokenError, LoadError, RequestError
from forescribe.speculative.models.causal_lm import CausalDecoder
from forescribe.speculative.models.load_lock import loading
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.requests import Finish, Mode, Partial, Request, Result
from forescribe.speculative.rounds.accept import BlockVerification

from .language_model import LanguageModel, check_draft, load
from .streaming import Candidate, Completion, Ended, Options, Token, Writing
from .universal import UniversalDrafter
from .vocabulary import Message

__all__ = ["Candidate", "Completion", "Event", "Options", "TextGenerator", "Token"]

NGRAM: Final = "ngram"
"""The draft that needs no model: what followed the last words when they occurred before."""

CONTEXT = 4096
"""Positions that a row has where nobody asks for more: memory is taken for all of them."""

RANKS = 20
"""Most likely tokens that may be asked for at each position; OpenAI's limit."""

MODES = (Mode(), Mode(sampling=True), Mode(True, True, True, True))


@dataclass(frozen=True)
class Event:
    """News of a text: what has become final, and with the last of it the whole."""

    number: int  # as `submit` gave it
    text: str
    tokens: tuple[Token, ...]
    completion: Completion | None = None


class TextGenerator:
    """One target with one draft: another model, `"ngram"`, or None for plain decoding. `universal` lets
    a model with other tokens draft through text, on processors.

    `gamma` is the drafts per round, None chooses by measured speed; `context` bounds prompt and text.
    Raises LoadError for a draft with other tokens, RequestError for a context that the model does not
    have. One thread at a time.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | str | None = None,
        *,
        device: Device,
        batch: int = 8,
        gamma: int | None = None,
        context: int | None = None,
        universal: bool = False,
    ) -> None:
        if context is not None:
            checks.whole("context", context, 2, target.positions)
        if gamma is not None:
            checks.whole("gamma", gamma, 0)
        self.target, self.draft, self.device = target, draft, device
        self.context = min(target.positions, CONTEXT) if context is None else context
        self.vocabulary = target.vocabulary
        drafter = self._drafter(gamma, universal)
        self.engine = Engine(
            CausalDecoder(target.model, self.context),
            drafter,
            batch=batch,
            eos=target.ends,
            schedule=schedule_for(gamma, drafter),
            device=device,
            # Never fewer tokens are kept than by token rejection; its price is small beside a vocabulary's
            # head.
            sampled=BlockVerification(),
            ranks=min(RANKS, target.vocab_size),
            modes=MODES,
        )
        if device.static_shapes:
            self.engine.warm_up()
        self._writings: dict[int, Writing] = {}
        self._numbers = count()
        self._awaited: dict[int, deque[Event]] = {}  # news for `stream` and `generate`, by text
        self._news: deque[Event] = deque()  # of all other texts, until the next `step`

    @classmethod
    @loading()
    def load(
        cls,
        model: str | Path,
        draft: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch: int = 8,
        gamma: int | None = None,
        context: int | None = None,
        universal: bool = False,
        network: bool = True,
    ) -> TextGenerator:
        """From folders or hub ids; `draft` may also be `"ngram"`. Raises LoadError and DeviceError.

        Without a `dtype` it is float32 on processors, else bfloat16, which language models are trained
        in: some overflow in float16.
        """
        place = choose(device, dtype)
        if dtype in (None, "auto") and place.kind != "cpu":
            place = replace(place, dtype=torch.bfloat16)
        target = load(model, place, network=network)
        second: LanguageModel | str | None = NGRAM if draft == NGRAM else None
        if draft is not None and draft != NGRAM:
            second = load(draft, place, role="draft", network=network)
        return cls(
            target,
            second,
            device=place,
            batch=batch,
            gamma=gamma,
            context=context,
            universal=universal,
        )

    def plain(self) -> TextGenerator:
        """The same target without a draft, on the same weights: what speed and text compare with."""
        batch = self.engine.batch
        return TextGenerator(self.target, device=self.device, batch=batch, context=self.context)

    def _drafter(self, gamma: int | None, universal: bool) -> Drafter | None:
        if self.draft is None:
            return None
        if isinstance(self.draft, str):
            if self.draft != NGRAM:
                raise LoadError(f"{self.draft!r} is no draft: a language model, or {NGRAM!r}")
            return NgramDrafter(hint_slots=1)  # the prompt is searched in any case
        if universal and self.target.vocabulary.difference(self.draft.vocabulary):
            return self._universal(self.draft)
        check_draft(self.target, self.draft)
        if self.draft.positions < self.context:
            raise LoadError(
                f"{self.draft.name} has {self.draft.positions} positions, fewer than the context "
                f"of {self.context}: give a context that it has"
            )
        return ModelDrafter(
            CausalDecoder(self.draft.model, self.context, vocab=self.target.vocab_size),
            confidence=confidence_for(gamma, self.device),
        )

    def _universal(self, draft: LanguageModel) -> Drafter:
        if self.device.static_shapes:
            raise LoadError(
                f"{draft.name} has other tokens than {self.target.name}: drafting through text works on "
                f"processors, not on {self.device.kind}, whose rounds are graphs"
            )
        return UniversalDrafter(
            CausalDecoder(draft.model),
            draft.vocabulary,
            draft.ends,
            self.vocabulary,
            min(self.target.ends, default=None),
            self.target.vocab_size,
        )

    # -- at any time ------------------------------------------------------------------------------

    def encode(self, prompt: str | Sequence[int] | Sequence[Message]) -> tuple[int, ...]:
        """Tokens of a text, of a conversation, or as they are. Raises RequestError where there is no
        room behind them, or where the model has no form for conversations."""
        ids = self._ids(prompt)
        wrong = next((i for i in ids if not 0 <= i < self.target.vocab_size), None)
        if wrong is not None:
            raise RequestError(f"token {wrong} is none of {self.target.name}'s")
        if not ids:
            raise RequestError("the prompt is empty")
        if len(ids) >= self.context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; with its answer it must fit {self.context}"
            )
        return ids

    def _ids(self, prompt: str | Sequence[int] | Sequence[Message]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            checks.text("the prompt", prompt)
            return self.vocabulary.encode(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise RequestError(
                f"the prompt is {type(prompt).__name__}, not text, tokens or messages"
            )
        if prompt and all(isinstance(item, Mapping) for item in prompt):
            messages = [item for item in prompt if isinstance(item, Mapping)]
            _check_text(messages)
            return self.vocabulary.chat(messages)
        ids = tuple(item for item in prompt if isinstance(item, int))
        if len(ids) < len(prompt) and any(isinstance(item, Mapping) for item in prompt):
            raise RequestError("the prompt mixes messages with something else")
        checks.tokens("the prompt", prompt)
        return ids

    def submit(
        self, prompt: str | Sequence[int] | Sequence[Message], options: Options | None = None
    ) -> int:
        """Queues a text; the number is its name in events. Raises RequestError."""
        options = Options() if options is None else options
        ids = self.encode(prompt)
        if options.logprobs > RANKS:
            raise RequestError(f"logprobs is {options.logprobs}; at most {RANKS}")
        number = next(self._numbers)
        request = Request(
            prompt=ids,
            max_new_tokens=options.max_tokens,
            temperature=options.temperature,
            sampling=options.sampling,
            ranks=min(options.logprobs, self.target.vocab_size),
            seed=options.seed,
            gamma=options.gamma,
            tag=number,
        )
        self.engine.submit(request)
        self._writings[number] = Writing(ids, options, self.vocabulary, self.target.ends)
        return number

    def cancel(self, number: int) -> None:
        """Its row is free in the next step, and no event of it follows; nothing if it has ended."""
        self._news = deque(event for event in self._news if event.number != number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        if self._writings.pop(number, None) is not None:
            self.engine.cancel(number)
            if not self._writings:  # no later step would free its row
                self.engine.step()

    @property
    def idle(self) -> bool:
        """Whether no text is under way, and `step` has nothing more to tell."""
        return not self._writings and not self._news

    @property
    def broken(self) -> BrokenError | None:
        """Why nothing can be written any more, once the device has failed."""
        return self.engine.broken

    def step(self) -> list[Event]:
        """One round of all rows, and what became final since the last step, except of the texts of
        `stream` and `generate`, which tell their own callers."""
        self._advance()
        events, self._news = self._news, deque()
        return list(events)

    def _advance(self) -> None:
        """One round of all rows; what became final goes to whoever waits for it."""
        for event in self._round():
            self._awaited.get(event.number, self._news).append(event)

    def _round(self) -> list[Event]:
        events = [self._ended(result) for result in self.engine.step() if self._mine(result)]
        known = {number: len(writing.ids) for number, writing in self._writings.items()}
        for partial in self.engine.peek(known):
            writing = self._writings.get(partial.request.tag)
            event = None if writing is None else self._grown(writing, partial)
            if event is not None:
                events.append(event)
        return events

    def _mine(self, result: Result) -> bool:
        """Whether its text is still wanted: not cancelled, nor ended by a stop string."""
        return result.request.tag in self._writings

    def _ended(self, result: Result) -> Event:
        """The end of a text. A fault in making text of its tokens is that text's alone."""
        number = result.request.tag
        writing = self._writings.pop(number)
        try:
            text, tokens = writing.grow(result.tokens, result.logprobs, result.ranked)
            rest, more = writing.end()
        except Exception as error:
            failed = faults.fault(faults.WRITING, error)
            return Event(number, "", (), writing.completion("failed", failed))
        finish: Ended = "length"
        if writing.stopped is not None or result.finish is Finish.STOP:
            finish = "stop"
        elif result.error is not None:
            finish = "failed"
        wrong = result.error if finish == "failed" else None
        completion = writing.completion(finish, wrong, result.draft_error)
        return Event(number, text + rest, tokens + more, completion)

    def _grown(self, writing: Writing, partial: Partial) -> Event | None:
        """What has become final of a text that goes on."""
        number = partial.request.tag
        try:
            text, tokens = writing.grow(
                partial.tokens, partial.logprobs, partial.ranked, partial.begin
            )
        except Exception as error:
            self._drop(number)
            failed = faults.fault(faults.WRITING, error)
            return Event(number, "", (), writing.completion("failed", failed))
        if writing.stopped is not None:
            self._drop(number)
            return Event(number, text, tokens, writing.completion("stop"))
        return Event(number, text, tokens) if text or tokens else None

    # -- all at once ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Iterable[str | Sequence[int] | Sequence[Message]],
        options: Options | None = None,
    ) -> list[Completion]:
        """The texts that follow the prompts, in their order.

        Raises RequestError, before anything is written, where a prompt cannot be served. A text that
        fails later is a completion with `finish` "failed" and an `error`; the others are not affected.
        """
        options = Options() if options is None else options
        if isinstance(prompts, str | bytes):
            raise RequestError("the prompts are one text; give a list of them")
        ids = [self.encode(prompt) for prompt in prompts]
        numbers: list[int] = []
        ended: dict[int, Completion] = {}
        try:
            for prompt in ids:
                numbers.append(self._begin(prompt, options))
            for number in numbers:
                for event in self._events(number):
                    if event.completion is not None:
                        ended[number] = event.completion
        finally:
            for number in numbers:
                self._leave(number)
        return [ended[number] for number in numbers]

    def stream(
        self, prompt: str | Sequence[int] | Sequence[Message], options: Options | None = None
    ) -> Iterator[Event]:
        """One text as it is written; a caller that stops listening cancels it. Raises DecodingError,
        behind what was written, where it fails."""
        number = self._begin(prompt, options)
        try:
            for event in self._events(number):
                yield event
                if event.completion is not None and event.completion.error is not None:
                    raise event.completion.error
        finally:
            self._leave(number)

    def _begin(
        self, prompt: str | Sequence[int] | Sequence[Message], options: Options | None
    ) -> int:
        """A text whose events wait for `_events`, whoever plays the rounds."""
        number = self.submit(prompt, options)
        self._awaited[number] = deque()
        return number

    def _events(self, number: int) -> Iterator[Event]:
        """All events of a text, up to its end."""
        news = self._awaited[number]
        while news or number in self._writings:
            if news:
                yield news.popleft()
            else:
                self._advance()

    def _leave(self, number: int) -> None:
        """Nobody waits for the text any more; cancelled, unless it has ended."""
        self._awaited.pop(number, None)
        self.cancel(number)

    @property
    def stats(self) -> Stats:
        """Everything since it was made."""
        return self.engine.stats


def _check_text(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        for name, value in message.items():
            if isinstance(value, str):
                checks.text(f"{name} of message {number}", value)
