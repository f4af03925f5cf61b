"""A serving without a model: it accepts jobs, and `forescribe worker` does them on other machines.

    serving = FrontEnd.of(settings)          # ready at once

Recordings are still decoded here, in child processes, for their length and to refuse what is not audio. What
only the model can tell (whether it knows a language that Whisper knows) fails the job instead of the request.
Routes that need the model are refused by name.
"""

from __future__ import annotations

from typing import NoReturn

from ..errors import ApiError
from .serving import Serving


class FrontEnd(Serving):
    """Decoders and admission only."""

    def start(self) -> None:
        self.decoders.start()
        if self.state == "loading":
            self.state = "ready"

    def check(self) -> None:
        """Raises ApiError `not_ready` if no work is admitted."""
        if not self.open:
            raise ApiError("not_ready", f"the server is {self.state}")

    def language(self, name: str) -> str:
        """The code of a language that Whisper knows. Raises ApiError `invalid_value`."""
        from forescribe.asr.model.special_tokens import known_languages, language_code

        code = language_code(name)
        if code not in known_languages():
            raise ApiError("invalid_value", f"unknown language {name!r}", param="language")
        return code

    @property
    def multilingual(self) -> bool:
        """Unknown here; an English-only model's worker fails the job."""
        return True


def refuse_without_model() -> NoReturn:
    """A dependency of the routes that need a model in this process. Raises ApiError `not_found`, before the
    body is read."""
    raise ApiError(
        "not_found",
        "this server has no model (front_end = true), so it answers /v1/jobs only: POST the recording there",
    )
