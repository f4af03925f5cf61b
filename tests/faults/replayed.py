"""`forescribe serve` over a model whose answers are kept, so that everything but the model takes its time.

    python -m tests.faults.replayed FOLDER PORT RECORDING...

What is asked of recordings that it does not know, as by live sessions, has the answer of the first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from benchmarks.replay import Replay
from forescribe.api.app import create_app
from forescribe.api.http.protocols import HttpProtocol, SocketProtocol
from forescribe.api.jobs.service import Jobs
from forescribe.api.process import share_heaps
from forescribe.api.settings import NO_DIARIZER, Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber


class Known(dict[Any, Any]):
    """Gives its first value for what it does not hold."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: object) -> Any:
        return next(iter(self.values()))


def main() -> None:
    share_heaps()
    folder, port, *recordings = sys.argv[1:]
    transcriber = Transcriber.load("tiny.en", "none", gamma=0, beam_size=1)
    options = Options(language="en", words=True, guards=Guards())
    with Replay(transcriber.context) as replay:
        for outcome in transcriber.transcribe(recordings, options):
            assert outcome.error is None, outcome.error
        replay.answers, replay.maps = Known(replay.answers), Known(replay.maps)
        replay.free = True
        settings = Settings(
            model="replayed",
            port=int(port),
            data_dir=Path(folder) / "data",
            diarizer=NO_DIARIZER,
            drain_s=0.0,
            min_free_bytes=0,
            max_requests=256,
            max_requests_per_key=256,
        )
        serving = Serving(settings, lambda: transcriber, _no_speakers)
        app = create_app(settings, serving, Jobs.open(settings, serving))
        layers: dict[str, Any] = {"http": HttpProtocol, "ws": SocketProtocol}
        uvicorn.run(app, port=int(port), log_config=None, access_log=False, **layers)


def _no_speakers() -> NoReturn:
    raise SystemExit("nobody asks for speakers here")


if __name__ == "__main__":
    main()
