"""Bodies and answers of `/v1/completions` and `/v1/chat/completions`: OpenAI's fields, checked, and formats.

OpenAI's options that this service does not have (tools, biases, best_of) are refused by name, unless they
ask for nothing, as the defaults of wrappers do: `IDLE`. `top_k`, `min_p`, `repetition_penalty` and `gamma`
are extensions; SDKs send them as `extra_body`. Does not know how texts are generated.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from fastapi import Request
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from forescribe.speculative.errors import RequestError

from ..errors import ApiError
from ..http.bodies import json_object
from ..wording import Frozen, field_of, told

if TYPE_CHECKING:
    from forescribe.text.streaming import Candidate, Completion, Options, Token

    Text = tuple[tuple[int, ...], Options]
    """A prompt in tokens, and the options of its text."""


MAX_BODY = 8 << 20
"""Bytes. A prompt that fills the longest context has a few hundred thousand."""

MAX_TEXTS = 128
"""Texts in one request."""

IDLE: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "tools": ([],),
        "functions": ([],),
        "tool_choice": ("none", "auto"),
        "function_call": ("none", "auto"),
        "parallel_tool_calls": (False, True),
        "logit_bias": ({},),
        "store": (False,),
        "suffix": ("",),
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
    }
)
"""Fields that are not here, with the values by which they ask for nothing."""

Json = dict[str, Any]

Prompt = str | list[int] | list[dict[str, str]]  # a text, tokens, or a conversation


Stop = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]

Ids = list[Annotated[int, Field(ge=0, lt=2**31)]]


class StreamOptions(Frozen):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextForm(Frozen):
    """The fields of both routes."""

    model: str | None = None  # the loaded one
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1, le=MAX_TEXTS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | None = Field(None, max_length=4)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    # Labels for OpenAI's own records, of which there are none here: accepted and not used.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    # Extensions.
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    gamma: int | None = Field(None, ge=0, le=64)


class CompletionForm(TextForm):
    prompt: str | Ids | list[str] | list[Ids]
    max_tokens: int | None = Field(16, ge=1, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None

    @property
    def max_text_tokens(self) -> int | None:
        """The maximum number of tokens of one text."""
        return self.max_tokens

    @property
    def ranks(self) -> int | None:
        """How many of the most probable tokens are returned for each position; None for no
        log-probabilities at all."""
        return self.logprobs

    @property
    def prompts(self) -> list[Prompt]:
        """One prompt or several; a list of numbers is one prompt of token ids."""
        one = isinstance(self.prompt, str) or all(isinstance(item, int) for item in self.prompt)
        return cast(list[Prompt], [self.prompt] if one else self.prompt)


class ContentPart(Frozen):
    type: Literal["text"]
    text: str


class ChatMessage(Frozen):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[ContentPart, ...]
    name: str | None = None  # accepted and not used: chat templates have no place for it

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        """An answer of an SDK that is sent again has its empty fields, and may have no content."""
        if not isinstance(given, Mapping):
            return given
        asked = {k: v for k, v in given.items() if v is not None}
        if asked.get("role") == "assistant":
            calls = [k for k in ("tool_calls", "annotations") if asked.get(k) == []]
            return {"content": "", **{k: v for k, v in asked.items() if k not in calls}}
        return asked

    def plain(self) -> dict[str, str]:
        """The message for chat templates, which have neither parts nor the role `developer`."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content}


class TextFormat(Frozen):
    type: Literal["text"]


class ChatForm(TextForm):
    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: TextFormat | None = None

    @model_validator(mode="after")
    def _ranks_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        return [[message.plain() for message in self.messages]]

    @property
    def max_text_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def ranks(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


Form = CompletionForm | ChatForm


async def parse(request: Request, kind: type[Form]) -> Form:
    """Read and check the body. Raises ApiError `invalid_value` with the name of the field."""
    body = await json_object(request, MAX_BODY)
    # As of JSON: 0 is no false.
    idle = {name: [*map(json.dumps, (None, *IDLE.get(name, ())))] for name in body}
    values = {k: v for k, v in body.items() if json.dumps(v) not in idle[k]}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        place, message = told(error.errors(), kind.model_fields)
        param = field_of(place) or "top_logprobs"
        if param in IDLE:
            message = "is not here: this server writes text, and calls, biases and stores nothing"
        raise ApiError("invalid_value", f"{place or param}: {message}", param=param) from error


def texts_of(form: Form, encode: Callable[[Prompt], tuple[int, ...]]) -> list[Text]:
    """The prompts of all texts, in tokens, with their options; takes the time that `encode` takes. Raises
    ApiError `invalid_value` for too many texts, and a prompt that cannot be continued."""
    if len(form.prompts) * form.n > MAX_TEXTS:
        raise ApiError("invalid_value", f"more than {MAX_TEXTS} texts in one request", param="n")
    try:
        prompts = [encode(prompt) for prompt in form.prompts]
    except RequestError as error:
        param = "messages" if isinstance(form, ChatForm) else "prompt"
        raise ApiError("invalid_value", str(error), param=param) from error
    choices = _choices(form)
    return [(prompt, options) for prompt in prompts for options in choices]


def _choices(form: Form) -> list[Options]:
    """The options of the `n` texts of one prompt. Without a seed they differ each time; with one, each
    text has a separate seed that depends on nothing else."""
    from forescribe.speculative.requests import Sampling
    from forescribe.text.streaming import Options

    seed = secrets.randbits(31) if form.seed is None else form.seed
    sampling = Sampling(
        top_k=form.top_k,
        top_p=form.top_p,
        min_p=form.min_p,
        repetition=form.repetition_penalty,
        presence=form.presence_penalty,
        frequency=form.frequency_penalty,
    )
    return [
        Options(
            max_tokens=form.max_text_tokens,
            temperature=form.temperature,
            sampling=sampling,
            # The index in the upper 32 bits is added to the seed, as int64.
            seed=(seed + (index << 32) + 2**63) % 2**64 - 2**63,
            stop=form.stop or (),
            logprobs=form.ranks or 0,
            gamma=form.gamma,
        )
        for index in range(form.n)
    ]


def prompt_tokens(form: Form, texts: Sequence[Text]) -> int:
    """Tokens of the prompts. Each counts once, however many texts are generated for it."""
    return sum(len(prompt) for prompt, _ in texts) // form.n


class AnswerShape:
    """The JSON format of one of the two routes, for one answer. `created` is in Unix seconds; `logprobs` is
    the number of most probable tokens per position, None for no log-probabilities."""

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, model: str, created: int, *, logprobs: int | None, usage: bool) -> None:
        self.model, self.created = model, created
        self.logprobs, self.with_usage = logprobs, usage
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._offsets = Counter[int]()  # characters of the tokens so far, by choice

    def whole(self, choices: list[Json], usage: Json) -> Json:
        """The whole answer."""
        return {**self._body(self.kind, choices), "usage": usage}

    def _body(self, kind: str, choices: list[Json]) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": choices}

    def chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        """With `include_usage` every chunk has the key `usage`, and the last one has the numbers."""
        body = self._body(self.chunk_kind, choices)
        return {**body, "usage": usage} if self.with_usage else body


class TextShape(AnswerShape):
    """`/v1/completions`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def begin(self, index: int) -> None:
        """The first chunk of a choice, before its text: none."""

    def part(self, index: int, text: str, tokens: Sequence[Token]) -> Json:
        """A chunk with text of a choice."""
        return self._choice(index, text, tokens, None)

    def end(self, index: int, finish: str) -> Json:
        """The last chunk of a choice."""
        return self._choice(index, "", (), finish)

    def choice(self, index: int, done: Completion) -> Json:
        """A whole choice."""
        return self._choice(index, done.text, done.tokens, done.finish)

    def _choice(self, index: int, text: str, tokens: Sequence[Token], finish: str | None) -> Json:
        logprobs = None if self.logprobs is None else self._logprobs(index, tokens)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> Json:
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.data.decode(errors="replace"))
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{c.text: c.logprob for c in (*t.best, t)} for t in tokens],
            "text_offset": offsets,
        }


class ChatShape(AnswerShape):
    """`/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self, index: int) -> Json:
        return self._delta(index, {"role": "assistant", "content": ""})

    def part(self, index: int, text: str, tokens: Sequence[Token]) -> Json:
        logprobs = self._logprobs(tokens) if tokens else None
        return self._delta(index, {"content": text}, logprobs=logprobs)

    def end(self, index: int, finish: str) -> Json:
        return self._delta(index, {}, finish=finish)

    def choice(self, index: int, done: Completion) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": done.text, "refusal": None},
            "logprobs": self._logprobs(done.tokens),
            "finish_reason": done.finish,
        }

    def _delta(
        self, index: int, delta: Json, *, logprobs: Json | None = None, finish: str | None = None
    ) -> Json:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Iterable[Token]) -> Json | None:
        if self.logprobs is None:
            return None
        content = [{**_ranked(t), "top_logprobs": [_ranked(c) for c in t.best]} for t in tokens]
        return {"content": content, "refusal": None}


Shape = TextShape | ChatShape


def shape_of(form: Form, model: str) -> Shape:
    """The format of the answer to a form, created now. `model` is the name that it tells."""
    kind = ChatShape if isinstance(form, ChatForm) else TextShape
    usage = form.stream_options is not None and form.stream_options.include_usage
    return kind(model, int(time.time()), logprobs=form.ranks, usage=usage)


def _ranked(candidate: Candidate) -> Json:
    return {"token": candidate.text, "logprob": candidate.logprob, "bytes": list(candidate.data)}


def usage_of(completions: Iterable[Completion], prompt_tokens: int) -> Json:
    """Token counts. All generated tokens count, including end-of-text and stop strings."""
    generated = sum(len(completion.ids) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }
