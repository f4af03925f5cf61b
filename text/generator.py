"""TextGenerator: prompts to text by speculative decoding, for unmodified language models.

    generator = TextGenerator.load("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", gamma=5)
    for completion in generator.generate(["Once upon a time"], Options(max_tokens=64)):
        print(completion.text)

A prompt is a text, a conversation, or token ids. All prompts share the engine's rows, and new ones may come
at any time: a service calls `submit` and `step` in one thread. Greedy text equals plain decoding, token for
token; above temperature 0 its distribution does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from forescribe.speculative import requests
from forescribe.speculative.device import Device, choose
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.errors import BrokenError, LoadError, RequestError
from forescribe.speculative.model_engines import ModelEngine, draft_device
from forescribe.speculative.models.causal import cache_numbers
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.requests import Mode, Request, Result, Stats

from .drafts import HeadDraft, drafter_for, load_draft
from .language_model import LanguageModel, load
from .presets import NGRAM
from .streaming import Completion, Event, Options, TextStream
from .vocabulary import Message, Vocabulary

CONTEXT = 4096
"""Positions of a row that are allowed by default whatever memory is free, if the models have them."""

STEP, SHARE = 256, 0.5
"""Longer rows are allowed in steps, as far as they take at most this share of the free memory: a server's
speech model is loaded beside."""

RANKS = 20
"""Most likely tokens that a request may ask for at each position; OpenAI's limit."""

MODES = (Mode(), Mode(sampling=True), Mode(True, True, True, True))
"""What rounds are prepared for: greedy texts, sampled ones, and everything that a request may ask for."""

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or a conversation."""


class TextGenerator:
    """One target with one draft: another model, a head, `"ngram"`, or None for plain decoding.

    `gamma` is the number of drafted tokens per round; None chooses it by measured speed. `context` is
    the maximum number of tokens of prompt and text, by default as `default_context`. Raises LoadError for
    a draft with other tokens, RequestError for a context that the model does not have. Not thread-safe.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | HeadDraft | str | None = None,
        *,
        device: Device,
        batch: int = 8,
        gamma: int | None = None,
        context: int | None = None,
    ) -> None:
        if context is not None:
            requests.check_whole("context", context, 2, target.positions)
        if gamma is not None:
            requests.check_whole("gamma", gamma, 0)
        self.target, self.draft, self.device = target, draft, device
        if context is None:
            models = [target]
            if isinstance(draft, LanguageModel):
                models.append(draft)
            context = default_context(models, device, batch)
        self.context = context
        self.vocabulary = target.vocabulary
        drafter = drafter_for(target, draft, device, gamma=gamma, context=context)
        self.engine = Engine(
            target.decoder(self.context),
            drafter,
            batch=batch,
            eos=target.ends,
            schedule=schedule_for(gamma, drafter),
            device=device,
            ranks=min(RANKS, target.vocab_size),
            modes=MODES,
        )
        if device.static_shapes:
            self.engine.warm_up()
        self.engine.choose_threads()
        self._numbers = count()
        self._streams: dict[int, TextStream] = {}  # of the texts under way
        self._queues: dict[int, deque[Event]] = {}  # of events for `stream` and `generate`, by text
        self._events: deque[Event] = deque()  # of all other texts, until the next `step`

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
        network: bool = True,
        engine: str | None = None,
        draft_dtype: str | None = None,
        quantize: str | None = None,
    ) -> TextGenerator:
        """Loads a pair from folders or hub ids. `draft` may also be the folder of an EAGLE-3 head,
        `"mtp"` for a layer in the target's own checkpoint, or `"ngram"`.
        `engine` runs the forwards: "auto", "native", "lean" or "modules"; the texts are the same.

        `dtype` is float32 on CPUs and bfloat16 elsewhere by default: language models are trained in
        bfloat16, and some overflow in float16. `draft_dtype` is the draft's number format, which changes no
        text (None: the fastest here, see `draft_precision`). `quantize` "int8" rounds the target's matrices
        to 8-bit integers, on the native engine alone: other texts, the same with and without drafts. Raises
        LoadError and DeviceError.
        """
        place = choose(device, dtype, quantize)
        if dtype in (None, "auto") and place.kind != "cpu":
            place = replace(place, dtype=torch.bfloat16)
        forward = ModelEngine.of(engine)
        target = load(model, place, network=network, engine=forward)
        second: LanguageModel | HeadDraft | str | None = None
        if draft == NGRAM:
            second = NGRAM
        elif draft is not None:
            drafts = draft_device(place, draft_dtype, forward)
            second = load_draft(draft, target, drafts, network=network, engine=forward)
        if isinstance(second, HeadDraft) and draft_dtype not in (None, "auto"):
            raise LoadError(
                f"--draft-dtype {draft_dtype}: a head has its target's number format, whose states it reads; "
                "leave the option out"
            )
        return cls(target, second, device=place, batch=batch, gamma=gamma, context=context)

    def plain(self) -> TextGenerator:
        """The same target without a draft, on the same weights: the baseline for speed and text."""
        batch = self.engine.batch
        return TextGenerator(self.target, device=self.device, batch=batch, context=self.context)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens of a text or a conversation; token ids as they are. Raises RequestError where there
        is no room after them, or where the model has no chat template."""
        ids, positions = _ids(prompt, self.vocabulary), self.target.positions
        unknown = next((i for i in ids if not 0 <= i < self.target.vocab_size), None)
        if unknown is not None:
            size = self.target.vocab_size
            raise RequestError(f"token {unknown} is none of the model's: they are 0 to {size - 1}")
        if not ids:
            raise RequestError("the prompt is empty")
        if len(ids) >= self.context:
            more = (
                f"; a larger context allows up to {positions}" if positions > self.context else ""
            )
            raise RequestError(
                f"the prompt has {len(ids)} tokens; with its answer it must fit {self.context}{more}"
            )
        return ids

    def submit(self, prompt: Prompt, options: Options | None = None) -> int:
        """Queues a text; returns its number in events. Raises RequestError."""
        options = Options() if options is None else options
        ids = self.encode(prompt)
        if options.logprobs > RANKS:
            raise RequestError(f"logprobs is {options.logprobs}; at most {RANKS}")
        number = next(self._numbers)
        self.engine.submit(
            Request(
                prompt=ids,
                max_new_tokens=options.max_tokens,
                temperature=options.temperature,
                sampling=options.sampling,
                ranks=min(options.logprobs, self.target.vocab_size),
                seed=options.seed,
                gamma=options.gamma,
                tag=number,
            )
        )
        stream = TextStream(number, ids, options, self.vocabulary, self.target.ends)
        self._streams[number] = stream
        return number

    def cancel(self, number: int) -> None:
        """Cancels a text: its row is free in the next step, and it has no further event. Does nothing if
        it has ended."""
        self._events = deque(event for event in self._events if event.number != number)
        self._remove(number)

    @property
    def idle(self) -> bool:
        """Whether no text is under way, and `step` has no more events."""
        return not self._streams and not self._events

    @property
    def broken(self) -> BrokenError | None:
        """The reason why no text can be written any more, once the device has failed."""
        return self.engine.broken

    @property
    def stats(self) -> Stats:
        """The statistics since the generator was created."""
        return self.engine.stats

    def step(self) -> list[Event]:
        """Runs one round of all rows. Returns what became final since the last step, except of the texts
        of `stream` and `generate`."""
        self._dispatch(self.engine.step())
        events, self._events = self._events, deque()
        return list(events)

    def generate(
        self, prompts: Iterable[Prompt], options: Options | None = None
    ) -> list[Completion]:
        """The texts that follow the prompts, in their order.

        Raises RequestError, before anything is written, where a prompt cannot be served. A text that
        fails later is a completion with `finish` "failed" and an `error`; the others are not affected.
        """
        if isinstance(prompts, str | bytes):
            raise RequestError("the prompts are one text; give a list of them")
        ids = [self.encode(prompt) for prompt in prompts]
        numbers: list[int] = []
        try:
            for prompt in ids:
                numbers.append(self._open(prompt, options))
            while any(number in self._streams for number in numbers):
                self._dispatch(self.engine.step())
            last = [self._queues[number][-1].completion for number in numbers]
        finally:
            for number in numbers:
                self._close(number)
        return [completion for completion in last if completion is not None]

    def stream(self, prompt: Prompt, options: Options | None = None) -> Iterator[Event]:
        """Yields one text as it is written; leaving the iteration cancels it. Raises DecodingError,
        after what was written, where it fails."""
        number = self._open(prompt, options)
        try:
            queue = self._queues[number]
            while queue or number in self._streams:
                if not queue:
                    self._dispatch(self.engine.step())
                    continue
                event = queue.popleft()
                yield event
                if event.completion is not None and event.completion.error is not None:
                    raise event.completion.error
        finally:
            self._close(number)

    def _open(self, prompt: Prompt, options: Options | None) -> int:
        """Submits a text whose events are queued apart from those of `step`."""
        number = self.submit(prompt, options)
        self._queues[number] = deque()
        return number

    def _close(self, number: int) -> None:
        """Ends the queue of a text, and cancels the text unless it has ended."""
        self._queues.pop(number, None)
        self.cancel(number)

    def _remove(self, number: int) -> None:
        """Cancels a text in the engine."""
        if self._streams.pop(number, None) is not None:
            self.engine.cancel(number)
            if not self._streams:  # no later step would free its row
                self.engine.step()

    def _dispatch(self, results: list[Result]) -> None:
        """Queues the events of a round."""
        events: list[Event] = []
        for result in results:
            stream = self._streams.pop(result.request.tag, None)
            if stream is not None:  # neither cancelled nor ended by a stop string
                events.append(stream.finish(result))
        known = {number: len(stream.ids) for number, stream in self._streams.items()}
        for partial in self.engine.peek(known):
            stream = self._streams.get(partial.request.tag)
            event = None if stream is None else stream.extend(partial)
            if event is None:
                continue
            if event.completion is not None:  # a stop string, or a fault
                self._remove(event.number)
            events.append(event)
        for event in events:
            self._queues.get(event.number, self._events).append(event)


def default_context(models: Sequence[LanguageModel], device: Device, batch: int) -> int:
    """Positions of a row that the models have, as far as memory allows: for the caches of `batch` rows, and
    for the masks of as many prompts, which are read together. The memory of caches is taken at once on
    cards; on CPUs while texts grow."""
    longest = min(model.positions for model in models)
    free = device.free_memory()
    if longest <= CONTEXT or free is None:
        return min(longest, CONTEXT)
    size = batch * device.dtype.itemsize
    kept = size * sum(cache_numbers(model.model.config.get_text_config()) for model in models)
    # The longest n with kept * n + size * n**2 <= SHARE * free.
    fits = (math.sqrt(kept**2 + 4 * size * SHARE * free) - kept) / (2 * size)
    return min(longest, max(CONTEXT, int(fits + 1e-6) // STEP * STEP))


def _ids(prompt: Prompt, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens of a prompt in any form. Raises RequestError for what is none."""
    if isinstance(prompt, str):
        requests.check_text("the prompt", prompt)
        return vocabulary.encode(prompt)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise RequestError(f"the prompt is {type(prompt).__name__}, not text, tokens or messages")
    if prompt and all(isinstance(item, Mapping) for item in prompt):
        messages = [item for item in prompt if isinstance(item, Mapping)]
        _check_messages(messages)
        return vocabulary.chat(messages)
    ids = tuple(item for item in prompt if isinstance(item, int))
    if len(ids) < len(prompt) and any(isinstance(item, Mapping) for item in prompt):
        raise RequestError("the prompt mixes messages with something else")
    requests.check_tokens("the prompt", prompt)
    return ids


def _check_messages(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        for name, value in message.items():
            if isinstance(value, str):
                requests.check_text(f"{name} of message {number}", value)
