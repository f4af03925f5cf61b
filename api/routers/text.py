"""`/v1/completions` and `/v1/chat/completions`: OpenAI's contract.

The key, the model, the capacity, the body and the prompt are checked before the answer begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from ..access.limits import Client
from ..dependencies import ClientDep, ServingDep, part, while_connected
from ..errors import ApiError
from ..http.event_streams import EventStream, encoded
from ..http.openapi import json_body
from ..speech.serving import Serving
from ..text.forms import (
    ChatForm,
    CompletionForm,
    Form,
    Json,
    Shape,
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
    return await _written(request, text_serving, serving, client, CompletionForm)


@router.post("/chat/completions", openapi_extra=json_body(ChatForm))
async def chat(
    request: Request, text_serving: TextServingDep, serving: ServingDep, client: ClientDep
) -> Response:
    return await _written(request, text_serving, serving, client, ChatForm)


async def _written(
    request: Request, text_serving: TextServing, serving: Serving, client: Client, kind: type[Form]
) -> Response:
    generator = text_serving.check()
    if serving.life.leaving:
        raise ApiError("not_ready", f"the server is {serving.life.state}")
    reservation = serving.admission.reserve(client)
    try:
        form = await parse(request, kind)
        reservation.start()
        shape = shape_of(form, text_serving.named(form.model))
        pairs = await asyncio.to_thread(texts_of, form, generator.encode)
        texts = text_serving.write(pairs, reservation.release)
    except BaseException:
        reservation.release()
        raise
    read, began_ns = prompt_tokens(form, pairs), time.time_ns()

    def end() -> None:
        """Cancel what is left."""
        texts.cancel()
        serving.tracing.record("generate", began_ns, time.time_ns())

    if form.stream:
        return EventStream(encoded(_chunks(texts, shape, read)), end)
    try:
        completions = await while_connected(request, texts.completions())
    finally:
        end()
    choices = [shape.choice(index, done) for index, done in enumerate(completions)]
    return JSONResponse(shape.whole(choices, usage_of(completions, read)))


async def _chunks(texts: TextRequest, shape: Shape, read: int) -> AsyncGenerator[Json, None]:
    """`read` are the tokens of the prompts."""
    ended: list[Completion] = []
    for index in range(len(texts.texts)):
        if (begin := shape.begin(index)) is not None:
            yield shape.chunk([begin])
    while len(ended) < len(texts.texts):
        index, event = await texts.next()
        if event.text or (event.tokens and shape.logprobs is not None):
            yield shape.chunk([shape.part(index, event.text, event.tokens)])
        if event.completion is not None:
            ended.append(event.completion)
            yield shape.chunk([shape.end(index, event.completion.finish)])
    if shape.with_usage:
        yield shape.chunk([], usage_of(ended, read))
