"""`/v1/models`: the loaded speech model under its own name and its aliases, and the text model.

Does not know whether they are loaded yet.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from ..dependencies import SettingsDep
from ..errors import ApiError
from ..settings import Settings

router = APIRouter(prefix="/v1/models", tags=["models"])


class Model(BaseModel):
    """OpenAI's model object."""

    id: str
    object: str = "model"
    created: int = 0  # unknown; the contract requires a number
    owned_by: str = "forescribe"


class Models(BaseModel):
    object: str = "list"
    data: list[Model]


@router.get("")
async def models(settings: SettingsDep) -> Models:
    texts = [] if settings.text_name is None else [settings.text_name]
    return Models(data=[Model(id=name) for name in [*names(settings), *texts]])


@router.get("/{name:path}")
async def model(name: str, settings: SettingsDep) -> Model:
    return Model(
        id=name
        if name in (settings.text_name, settings.text_model)
        else check_model(name, settings)
    )


def names(settings: Settings) -> list[str]:
    """The names of the speech model, its own first."""
    return list(dict.fromkeys([settings.model_name, *settings.aliases]))


def check_model(name: str, settings: Settings) -> str:
    """The name, if it is one of the speech model's. Raises ApiError `model_not_found`."""
    if name not in (*names(settings), settings.model):
        text = f"there is no model {name!r}; there is {settings.model_name!r}"
        raise ApiError("model_not_found", text, param="model")
    return name
