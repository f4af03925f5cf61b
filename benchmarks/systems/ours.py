"""This engine, from windows to words.

Voice activity detection is left out for all systems; features, encoder, admission and rounds are measured.
Imports what the command imports, as its peak memory is measured too. Knows the library; nothing of measuring.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.comparison import check_drafts, dtype_of, quantization_of
from benchmarks.systems.jobs import LANGUAGE, TASK, Job, Samples, Written, use_threads
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.whisper import attending
from forescribe.speculative.requests import Request


class Ours:
    """The parts of the transcriber. The encoder takes as many windows at a time as in the command. With
    gamma 0 it decodes plainly, which is the reference of all rows."""

    def __init__(self, job: Job) -> None:
        self.threads = use_threads(job.threads)
        self.transcriber = Transcriber.load(
            job.model,
            job.draft or "none",  # drafts are copied from a hint then
            language=LANGUAGE,
            device="cpu",
            dtype=dtype_of(job.dtype),
            quantize=quantization_of(job.dtype),
            batch=job.batch,
            gamma=None if job.gamma == "auto" else job.gamma or 0,
            network=False,
            engine=job.engine,
        )
        self.drafts = bool(job.gamma)
        self.alone = job.draft is None
        self.stages: dict[str, float] = {}

    def run(self, windows: Sequence[Samples]) -> Written:
        t = self.transcriber.context
        self.stages = {"features": 0.0, "encode": 0.0}
        before = t.engine.stats
        tokens: list[list[int]] = [[] for _ in windows]
        for result in t.engine.run(self._requests(windows)):
            ended = bool(result.tokens) and result.tokens[-1] in t.whisper.tokens.ends
            tokens[result.request.tag] = list(result.tokens[: len(result.tokens) - ended])
        stats = t.engine.stats - before
        check_drafts(stats)
        decode, end = t.whisper.tokenizer.decode, t.whisper.tokens.end
        texts = [decode([i for i in ids if i < end], skip_special_tokens=True) for ids in tokens]
        return Written(
            tokens,
            texts,
            replace(stats, seconds=self.stages | stats.seconds),
            ["no drafts: the model has none"] if self.drafts and self.alone else [],
            t.whisper.engine,
        )

    def _requests(self, windows: Sequence[Samples]) -> Iterator[Request]:
        """Requests, pulled by the engine when slots become free."""
        t = self.transcriber.context
        whisper = attending(t.whisper, "a benchmark")
        prompt = whisper.tokens.prompt(LANGUAGE, TASK, timestamps=True)
        count = t.encoded_together
        for first in range(0, len(windows), count):
            started = time.perf_counter()
            features = whisper.features(windows[first : first + count])
            extracted = time.perf_counter()
            encoded = whisper.encode(*features)
            self.stages["features"] += extracted - started
            self.stages["encode"] += time.perf_counter() - extracted
            for tag, encoder_states in enumerate(encoded, start=first):
                probe = whisper.probe(prompt)
                yield Request(prompt=prompt, encoder_states=encoder_states, probe=probe, tag=tag)
