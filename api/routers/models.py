"""`/v1/models`: the one that is loaded, under its own name and those that clients send; the text
model, if there is one."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from ..dependencies import Configured
from ..errors import ApiError
from ..settings import Settings

router = APIRouter(prefix="/v1/models", tags=["models"])


class Model(BaseModel):
    """OpenAI's model object."""

    id: str
    object: str = "model"
    created: int = 0  # nobody knows; the contract wants a number
    owned_by: str = "forescribe"


class Models(BaseModel):
    object: str = "list"
    data: list[Model]


@router.get("")
async def models(settings: Configured) -> Models:
    texts = [] if settings.text_name is None else [settings.text_name]
    return Models(data=[Model(id=name) for name in [*names(settings), *texts]])


@router.get("/{name:path}")
async def model(name: str, settings: Configured) -> Model:
    return Model(
        id=name if name in (settings.text_name, settings.text_model) else known(name, settings)
    )


def names(settings: Settings) -> list[str]:
    """Its own name first."""
    return list(dict.fromkeys([settings.model_name, *settings.aliases]))


def known(name: str, settings: Settings) -> str:
    """The name, if it is one of the model's. Raises `model_not_found`."""
    if name not in (*names(settings), settings.model):
        text = f"no model {name!r} here; there is {settings.model_name!r}"
        raise ApiError("model_not_found", text, param="model")
    return name
