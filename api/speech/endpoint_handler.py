"""EndpointHandler: the class that a Hugging Face Inference Endpoint with a custom handler calls.

    handler = EndpointHandler()
    handler({"inputs": "<base64 audio>", "parameters": {"language": "en"}})

Environment variables name the models, as in the contract's original: ASR_MODEL, ASSISTANT_MODEL,
DIARIZATION_MODEL (one of `forescribe diarize --diarizer`; without it there are no speakers) and HF_TOKEN
(read by the hub's client). Audio is decoded in a child process. Concurrent calls share the engine's slots.
The repository's handler.py is one line:

    from forescribe.api.speech.endpoint_handler import EndpointHandler
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.inputs import DecodedFile
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Json

from ..errors import ApiError
from . import huggingface_contract
from .decoding import Decoding
from .diarization import Speakers, numbered


class EndpointHandler:
    """One transcriber and its thread. `path` is the folder of a repository with weights; ASR_MODEL takes
    precedence.

    Raises ModelError if the weights cannot be loaded.
    """

    def __init__(self, path: str = "") -> None:
        model = os.environ.get("ASR_MODEL") or path or None
        self.decoders = Decoders()
        self.decoders.start()  # while the weights are loaded
        transcriber = Transcriber.load(model, os.environ.get("ASSISTANT_MODEL") or None)
        self.session = Session(transcriber.context)
        self.speakers: Speakers | None = None
        if diarizer := os.environ.get("DIARIZATION_MODEL"):
            from forescribe.diarize.engines import registry

            self.speakers = Speakers(partial(registry.load, diarizer), self.decoders)
        self._thread = threading.Thread(target=self.session.run, name="engine", daemon=True)
        self._thread.start()

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Json]:
        """Transcribe `inputs`: base64 text, or bytes that the endpoint's toolkit has decoded already. An
        error is `{"detail": ...}`, because this interface has no status."""
        try:
            parameters, warnings = huggingface_contract.parameters(data.get("parameters"))
            audio = _audio(data.get("inputs"))
            with closing(self.decoders.decode(audio, Bounds(), name="inputs")) as decoded_file:
                transcript, diarized = self._transcribed(decoded_file, parameters)
        except ForescribeError as error:
            return {"detail": ApiError.of(error).message}
        except ApiError as error:
            return {"detail": error.message}
        warnings += parameters.warnings(diarizing=self.speakers is not None)
        return huggingface_contract.answer(transcript, diarized, warnings)

    def _transcribed(
        self, decoded_file: DecodedFile, parameters: huggingface_contract.Parameters
    ) -> tuple[Transcript, Transcript | None]:
        """The transcript, and the same with speakers. Raises ForescribeError, ApiError."""
        decoding, diarizing = Decoding(), self.speakers is not None
        with ExitStack() as cleanup:
            diarization = None
            if self.speakers is not None:
                diarization = self.speakers.start(bounds=parameters.bounds())
                cleanup.callback(diarization.close)
            tap = diarization.add_samples if diarization is not None else None
            options = parameters.options(diarizing=diarizing)
            self.session.submit(decoded_file, options, decoding, name="inputs", tap=tap)
            decoding.outcome()
            transcript = decoding.transcript
            if diarization is None:
                return transcript, None
            return transcript, diarization.assign_blocking(transcript, numbered)

    def close(self) -> None:
        """End the thread and the decoders. Endpoints never call it."""
        self.session.close()
        self._thread.join()
        self.decoders.close()


def _audio(inputs: object) -> bytes:
    """Raises ApiError: `missing_file`, `invalid_audio`."""
    if isinstance(inputs, bytes):
        return inputs
    if not isinstance(inputs, str):
        raise ApiError("missing_file", "inputs: base64 audio is missing")
    try:
        return base64.b64decode(inputs, validate=True)
    except ValueError as error:  # also for text that is not ASCII
        raise ApiError("invalid_audio", "inputs: not base64") from error
