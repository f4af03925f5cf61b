"""`/v1/completions` and `/v1/chat/completions`: OpenAI's contract.

Whatever can fail early does so before the answer begins: the key, the model, room for one more, the
body, the prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from forescribe.speculative.errors import RequestError

from ..dependencies import ANYBODY, Caller, Served
from ..errors import ApiError
from ..speech.entry import attended
from ..speech.events import PING, PING_S, EventStream, data
from ..text.text_answers import ChatShape, Shape, TextShape, usage_of
from ..text.text_forms import MOST, ChatForm, CompletionForm, FormT, TextForm, parse
from ..text.text_serving import Reading, TextServing

if TYPE_CHECKING:
    from forescribe.text.streaming import Completion

router = APIRouter(prefix="/v1", tags=["text"])


def texting(request: Request) -> TextServing:
    found = request.app.state.texting
    assert isinstance(found, TextServing)
    return found


Texting = Annotated[TextServing, Depends(texting)]


def _described(form: type[TextForm]) -> dict[str, Any]:
    """The body for the OpenAPI description, which FastAPI cannot see."""
    content = {"application/json": {"schema": form.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("/completions", openapi_extra=_described(CompletionForm))
async def completions(
    request: Request, texting: Texting, serving: Served, caller: Caller
) -> Response:
    form, reading = await _begin(request, texting, serving, caller, CompletionForm)
    shape = TextShape(form.model, _now(), logprobs=form.ranks, usage=form.usage_streamed)
    return await _answer(request, form, reading, shape)


@router.post("/chat/completions", openapi_extra=_described(ChatForm))
async def chat(request: Request, texting: Texting, serving: Served, caller: Caller) -> Response:
    form, reading = await _begin(request, texting, serving, caller, ChatForm)
    shape = ChatShape(form.model, _now(), logprobs=form.ranks, usage=form.usage_streamed)
    return await _answer(request, form, reading, shape)


def _now() -> int:
    return int(time.time())


async def _begin(
    request: Request, texting: TextServing, serving: Served, caller: str, kind: type[FormT]
) -> tuple[FormT, Reading]:
    """The form, and its texts on their way. Raises ApiError, and nothing of it is left then."""
    generator = texting.check()
    if serving.leaving:
        raise ApiError("not_ready", f"the server is {serving.state}")
    place = serving.admission.arrive(caller, keyed=caller != ANYBODY)
    try:
        form = await parse(request, kind)
        place.enter()
        texting.known(form.model)
        found = form.prompts
        if len(found) * form.n > MOST:
            raise ApiError("invalid_value", f"more than {MOST} texts in one request", param="n")
        try:
            prompts = [await asyncio.to_thread(generator.encode, prompt) for prompt in found]
        except RequestError as error:
            param = "messages" if kind is ChatForm else "prompt"
            raise ApiError("invalid_value", str(error), param=param) from error
        choices = form.choices()
        work = [(prompt, options) for prompt in prompts for options in choices]
        return form, texting.write([p for p, _ in work], [o for _, o in work], place)
    except BaseException:
        place.leave()
        raise


async def _answer(request: Request, form: TextForm, reading: Reading, shape: Shape) -> Response:
    # Each prompt counts once, however many texts follow it.
    prompt_tokens = sum(map(len, reading.prompts)) // form.n
    if form.stream:
        body = _chunks(reading, shape, prompt_tokens, usage=form.usage_streamed)
        return EventStream(body, reading.cancel)
    try:
        ended = await attended(request, _all(reading))
    finally:
        reading.cancel()
    return JSONResponse(shape.whole(ended, prompt_tokens))


async def _all(reading: Reading) -> list[Completion]:
    """The texts in their order, once all have ended."""
    ended: dict[int, Completion] = {}
    while len(ended) < len(reading.prompts):
        index, event = await reading.next()
        if event.completion is not None:
            ended[index] = event.completion
    return [ended[index] for index in range(len(ended))]


async def _chunks(
    reading: Reading, shape: Shape, prompt_tokens: int, *, usage: bool
) -> AsyncIterator[bytes]:
    """The body of a stream. A failure on the way is an event named `error`, which SDKs raise."""
    ended: list[Completion] = []
    try:
        for index in range(len(reading.prompts)):
            begin = shape.begin(index)
            if begin is not None:
                yield data(shape.chunk([begin]))
        while len(ended) < len(reading.prompts):
            try:
                index, event = await asyncio.wait_for(reading.next(), PING_S)
            except TimeoutError:
                yield PING
                continue
            if event.text or (event.tokens and shape.logprobs is not None):
                yield data(shape.chunk([shape.delta(index, event.text, event.tokens)]))
            if event.completion is not None:
                ended.append(event.completion)
                yield data(shape.chunk([shape.end(index, event.completion)]))
        if usage:
            yield data(shape.chunk([], usage_of(ended, prompt_tokens)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"event: error\n" + data(error.body())
