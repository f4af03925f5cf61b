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

from ..access.limits import Client
from ..dependencies import ClientDep, ServingDep, part, reserve, while_connected
from ..errors import ApiError
from ..http.openapi import json_body
from ..speech.answers import PING, PING_S, EventStream, data
from ..text.forms import (
    ChatForm,
    CompletionForm,
    FormT,
    Shape,
    TextForm,
    parse,
    prompt_tokens,
    shape_of,
    texts_of,
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
    form, model, texts = await _begin(request, text_serving, serving, client, CompletionForm)
    return await _answer(request, serving, form, model, texts)


@router.post("/chat/completions", openapi_extra=json_body(ChatForm))
async def chat(
    request: Request, text_serving: TextServingDep, serving: ServingDep, client: ClientDep
) -> Response:
    form, model, texts = await _begin(request, text_serving, serving, client, ChatForm)
    return await _answer(request, serving, form, model, texts)


async def _begin(
    request: Request,
    text_serving: TextServing,
    serving: ServingDep,
    client: Client,
    kind: type[FormT],
) -> tuple[FormT, str, TextRequest]:
    """Parse the form, name the model, and queue the texts. Raises ApiError, and then nothing is queued."""
    generator = text_serving.check()
    if serving.life.leaving:
        raise ApiError("not_ready", f"the server is {serving.life.state}")
    reservation = reserve(request, client)
    try:
        form = await parse(request, kind)
        reservation.start()
        model = text_serving.named(form.model)
        texts = await asyncio.to_thread(texts_of, form, generator.encode)
        return form, model, text_serving.write(texts, reservation.release)
    except BaseException:
        reservation.release()
        raise


async def _answer(
    request: Request, serving: ServingDep, form: TextForm, model: str, texts: TextRequest
) -> Response:
    shape, read = shape_of(form, model), prompt_tokens(form, texts.texts)
    began_ns = time.time_ns()

    def end() -> None:
        """Cancel what is left."""
        texts.cancel()
        serving.tracing.record("generate", began_ns, time.time_ns(), tokens=texts.written)

    if form.stream:
        body = _chunks(texts, shape, read, usage=form.usage_streamed)
        return EventStream(body, end)
    try:
        completions = await while_connected(request, texts.completions())
    finally:
        end()
    return JSONResponse(shape.whole(completions, read))


async def _chunks(
    texts: TextRequest, shape: Shape, read: int, *, usage: bool
) -> AsyncIterator[bytes]:
    """The body of a stream. A failure is sent as an event named `error`, which SDKs raise."""
    ended: list[Completion] = []
    try:
        for index in range(len(texts.texts)):
            begin = shape.begin(index)
            if begin is not None:
                yield data(shape.chunk([begin]))
        while len(ended) < len(texts.texts):
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
            yield data(shape.chunk([], usage_of(ended, read)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"event: error\n" + data(error.body())
