"""The bodies of `/v1/completions` and `/v1/chat/completions`: OpenAI's fields, checked.

What OpenAI has and this service has not (tools, biases, several candidates to choose from) is refused by
name: an option is never accepted and then dropped. `top_k`, `min_p`, `repetition_penalty` and `gamma`
are ours; SDKs send them as `extra_body`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from fastapi import Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ..errors import ApiError
from ..http.validation import loads

if TYPE_CHECKING:
    from forescribe.text.streaming import Options

MAX_BODY = 8 << 20
"""Bytes. A prompt of the longest context is a few hundred thousand."""

MOST = 128
"""Texts that one request may ask for."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Prompt = str | list[int] | list[dict[str, str]]  # a text, tokens, or a conversation
Stop = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextForm(BaseModel):
    """What both routes take."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1, le=MOST)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | None = Field(None, max_length=4)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    user: str | None = None  # whose the text is: of no use here, of no harm either
    # Ours.
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    gamma: int | None = Field(None, ge=0, le=64)

    @property
    def usage_streamed(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def prompts(self) -> list[Prompt]:
        raise NotImplementedError

    @property
    def most(self) -> int | None:
        """Tokens of one text."""
        raise NotImplementedError

    @property
    def ranks(self) -> int | None:
        """How many of the likeliest tokens are told at each position; None where not even the text's
        own log-probabilities are."""
        raise NotImplementedError

    def choices(self) -> list[Options]:
        """Options of the `n` texts of one prompt. Without a seed they are new each time; with one,
        each has a seed of its own that depends on nothing else."""
        from forescribe.speculative.requests import Sampling
        from forescribe.text.streaming import Options

        seed = secrets.randbits(31) if self.seed is None else self.seed
        return [
            Options(
                max_tokens=self.most,
                temperature=self.temperature,
                sampling=Sampling(
                    top_k=self.top_k,
                    top_p=self.top_p,
                    min_p=self.min_p,
                    repetition=self.repetition_penalty,
                    presence=self.presence_penalty,
                    frequency=self.frequency_penalty,
                ),
                seed=_numbered(seed, index),
                stop=self.stop or (),
                logprobs=self.ranks or 0,
                gamma=self.gamma,
            )
            for index in range(self.n)
        ]


Ids = list[Annotated[int, Field(ge=0, lt=2**31)]]


class CompletionForm(TextForm):
    prompt: str | Ids | list[str] | list[Ids]
    max_tokens: int | None = Field(16, ge=1, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None

    @property
    def most(self) -> int | None:
        return self.max_tokens

    @property
    def ranks(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[Prompt]:
        """One text or more; a list of numbers is one prompt in tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(item, int) for item in self.prompt):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]


class ContentPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[ContentPart, ...]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates want it: they know no parts and no developers."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content}


class TextFormat(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

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
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def ranks(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


FormT = TypeVar("FormT", bound=TextForm)


async def parse(request: Request, kind: type[FormT]) -> FormT:
    """The body, read with a bound. Raises ApiError `invalid_value` with the field's name."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise ApiError("file_too_large", f"the body has more than {MAX_BODY} bytes")
    found = loads(bytes(data) or b"{}", "body")
    if not isinstance(found, dict):
        raise ApiError("invalid_value", "the body is no JSON object")
    values = {k: v for k, v in found.items() if v is not None}  # null was not given
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refused(error.errors(), kind) from error


def _refused(errors: Sequence[Any], kind: type[BaseModel]) -> ApiError:
    first = errors[0]
    param = str(first["loc"][0]) if first["loc"] else "top_logprobs"
    if first["type"] == "missing" and len(first["loc"]) == 1:
        text = f"{param} is missing"
    elif first["type"] == "extra_forbidden":
        name = ".".join(str(part) for part in first["loc"])
        text = f"{name} is not served here; known: {', '.join(sorted(kind.model_fields))}"
    else:
        text = f"{param}: {first['msg'].removeprefix('Value error, ')}"
    return ApiError("invalid_value", text, param=param)


def _numbered(seed: int, index: int) -> int:
    """Seeds of several texts: 32 bits of the user's own, the index behind them. In int64."""
    mixed = (seed + (index << 32)) % (1 << 64)
    return mixed - (1 << 64) if mixed >= 1 << 63 else mixed
