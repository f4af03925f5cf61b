"""`/v1/completions` and `/v1/chat/completions`: OpenAI's contract.

The key, the model, the capacity, the body and the prompt are checked before the answer begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from forescribe.speculative.errors import RequestError

from ..access.limits import Client
from ..dependencies import ClientDep, ServingDep, part, reserve
from ..errors import ApiError
from ..http.openapi import json_body
from ..speech.answers import PING, PING_S, EventStream, data
from ..speech.upload import while_connected
from ..text.forms import (
    MAX_TEXTS,
    ChatForm,
    ChatShape,
    CompletionForm,
    FormT,
    Shape,
    TextForm,
    TextShape,
    parse,
    usage_of,
)
from ..text.serving import TextRequest, TextServing

if TYPE_CHECKING:
    from forescribe.text.streaming import Completion

router = APIRouter(prefix="/v1", tags=["text"])


TextServingDep = Annotated[TextServing, Depends(part("text_serving", TextServing))]


@router.post("/completions", openapi_extra=json_body(CompletionForm))
async def completions(
    request: Request, text_serving: TextServingDep, serving: ServingDep, client: ClientDep
) -> Response:
    form, texts = await _begin(request, text_serving, serving, client, CompletionForm)
    shape = TextShape(form.model, _now(), logprobs=form.ranks, usage=form.usage_streamed)
    return await _answer(request, serving, client.owner, form, texts, shape)


@router.post("/chat/completions", openapi_extra=json_body(ChatForm))
async def chat(
    request: Request, text_serving: TextServingDep, serving: ServingDep, client: ClientDep
) -> Response:
    form, texts = await _begin(request, text_serving, serving, client, ChatForm)
    shape = ChatShape(form.model, _now(), logprobs=form.ranks, usage=form.usage_streamed)
    return await _answer(request, serving, client.owner, form, texts, shape)


def _now() -> int:
    return int(time.time())


async def _begin(
    request: Request,
    text_serving: TextServing,
    serving: ServingDep,
    client: Client,
    kind: type[FormT],
) -> tuple[FormT, TextRequest]:
    """Parse the form and queue its texts. Raises ApiError, and then nothing is queued."""
    generator = text_serving.check()
    if serving.leaving:
        raise ApiError("not_ready", f"the server is {serving.state}")
    await asyncio.to_thread(serving.usage.check_tokens, client.owner)
    reservation = reserve(request, client)
    try:
        form = await parse(request, kind)
        reservation.start()
        text_serving.check_model(form.model)
        if len(form.prompts) * form.n > MAX_TEXTS:
            raise ApiError(
                "invalid_value", f"more than {MAX_TEXTS} texts in one request", param="n"
            )
        try:
            prompts = [await asyncio.to_thread(generator.encode, p) for p in form.prompts]
        except RequestError as error:
            param = "messages" if kind is ChatForm else "prompt"
            raise ApiError("invalid_value", str(error), param=param) from error
        serving.admission.charge_tokens(client.owner, sum(map(len, prompts)))
        await asyncio.to_thread(serving.usage.spend, client.owner, requests=1)
        choices = form.choices()
        pairs = [(prompt, options) for prompt in prompts for options in choices]
        texts = text_serving.write([p for p, _ in pairs], [o for _, o in pairs], reservation)
        return form, texts
    except BaseException:
        reservation.release()
        raise


async def _answer(
    request: Request,
    serving: ServingDep,
    caller: str,
    form: TextForm,
    texts: TextRequest,
    shape: Shape,
) -> Response:
    # Each prompt counts once, however many texts are generated for it.
    prompt_tokens = sum(map(len, texts.prompts)) // form.n
    began_ns = time.time_ns()

    def end() -> None:
        """Cancel what is left, and count what was written, also if the client has left."""
        texts.cancel()
        serving.admission.add_tokens(caller, texts.written)
        serving.tracing.record("generate", began_ns, time.time_ns(), tokens=texts.written)
        serving.usage.later(caller, tokens=prompt_tokens + texts.written)

    if form.stream:
        body = _chunks(texts, shape, prompt_tokens, usage=form.usage_streamed)
        return EventStream(body, end)
    try:
        completions = await while_connected(request, _all(texts))
    finally:
        end()
    return JSONResponse(shape.whole(completions, prompt_tokens))


async def _all(texts: TextRequest) -> list[Completion]:
    """All texts in their order, once they have ended."""
    ended: dict[int, Completion] = {}
    while len(ended) < len(texts.prompts):
        index, event = await texts.next()
        if event.completion is not None:
            ended[index] = event.completion
    return [ended[index] for index in range(len(ended))]


async def _chunks(
    texts: TextRequest, shape: Shape, prompt_tokens: int, *, usage: bool
) -> AsyncIterator[bytes]:
    """The body of a stream. A failure is sent as an event named `error`, which SDKs raise."""
    ended: list[Completion] = []
    try:
        for index in range(len(texts.prompts)):
            begin = shape.begin(index)
            if begin is not None:
                yield data(shape.chunk([begin]))
        while len(ended) < len(texts.prompts):
            try:
                index, event = await asyncio.wait_for(texts.next(), PING_S)
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
