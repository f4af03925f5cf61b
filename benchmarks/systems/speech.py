"""transformers' `generate`, from windows to words: features, encoder and decoding are measured. Knows the
library; nothing of measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.utils import logging

from benchmarks.systems.jobs import (
    ASSISTED,
    GENERATE,
    LANGUAGE,
    TASK,
    Job,
    Samples,
    Written,
    use_threads,
)
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.speculative.models.weights import decoder_only, same_encoder
from forescribe.speculative.requests import Stats


class _Watched(WhisperForConditionalGeneration):
    """The model class, extended to record its first pass and count assisted loops."""

    first_pass: list[torch.Tensor]
    assisted_loops = 0

    def generate_with_fallback(self, *args: Any, **options: Any) -> Any:
        inner: Any = super()
        out = inner.generate_with_fallback(*args, **options)
        self.first_pass = out[0]  # [B] of [tokens], neither prompt nor end-of-text in them
        return out

    def _assisted_decoding(self, *args: Any, **options: Any) -> Any:
        self.assisted_loops += 1
        inner: Any = super()
        return inner._assisted_decoding(*args, **options)


class Generate:
    """transformers' `generate`, plain and with an assistant; not its pipeline, whose defaults use five beams
    and silently ignore the assistant.

    Here there is one beam and no sampling, and assisted loops are counted, to check that assisted generation
    took place. The assistant is the draft's decoder on the target's encoder output if the draft has no
    encoder or an equal one, which makes it fast; else the whole draft.

    Each window is decoded once: `generate` would seek back to an unfinished last segment and decode the
    rest as another window, which the other systems do not."""

    def __init__(self, job: Job) -> None:
        logging.set_verbosity_error()  # a warning per assisted round would distort the timing
        logging.disable_progress_bar()
        self.threads = use_threads(job.threads)
        dtype = getattr(torch, job.dtype)
        self.batch = job.batch
        self.model: Any = _Watched.from_pretrained(job.model, dtype=dtype)
        self.model.train(False)
        self.tokenizer = WhisperTokenizer.from_pretrained(job.model)
        self.extractor = WhisperFeatureExtractor.from_pretrained(job.model)
        self.options: dict[str, Any] = {}
        if getattr(self.model.generation_config, "is_multilingual", True):  # refused by others
            self.options = {"language": LANGUAGE, "task": TASK}
        self.notes: list[str] = []
        if job.system != GENERATE:
            self.options["assistant_model"] = self._assistant(job, dtype)
            self.rounds = _count_drafts()

    def _assistant(self, job: Job, dtype: torch.dtype) -> Any:
        if job.draft is None:
            raise ValueError("the model has no draft")
        assistant: Any = None
        if not decoder_only(WhisperConfig.from_pretrained(job.draft)):
            assistant = WhisperForConditionalGeneration.from_pretrained(job.draft, dtype=dtype)
        if assistant is None or same_encoder(self.model, assistant):
            assistant = WhisperForCausalLM.from_pretrained(job.draft, dtype=dtype)
            self.notes.append("draft's decoder on the target's encoder output")
        else:
            self.notes.append("whole draft, with an encoder of its own")
        if job.system == ASSISTED:
            # Read from the assistant's settings; as arguments of generate they have no effect.
            settings = assistant.generation_config
            settings.num_assistant_tokens = job.gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
        return assistant.train(False)

    @torch.inference_mode()
    def run(self, windows: Sequence[Samples]) -> Written:
        assisted = "assistant_model" in self.options
        self.model.assisted_loops = 0
        if assisted:
            self.rounds.clear()
        tokens: list[list[int]] = []
        for first in range(0, len(windows), self.batch):
            features = self.extractor(
                list(windows[first : first + self.batch]),
                sampling_rate=SAMPLE_RATE,
                return_tensors="pt",
            ).input_features.to(self.model.dtype)
            self.model.generate(
                features,
                return_timestamps=True,
                num_beams=1,
                do_sample=False,
                temperature=0.0,
                force_unique_generate_call=True,
                **self.options,
            )
            tokens += [row.tolist() for row in self.model.first_pass]
        if assisted and self.model.assisted_loops != len(windows):
            loops = self.model.assisted_loops
            raise RuntimeError(f"assisted {loops} of {len(windows)} windows: not a measurement")
        end = self.model.generation_config.eos_token_id
        decode = self.tokenizer.decode
        texts = [decode([i for i in ids if i < end], skip_special_tokens=True) for ids in tokens]
        if not assisted:
            return Written(tokens, texts, notes=self.notes)
        stats = Stats(  # the library reports the sums over all depths
            row_rounds=len(self.rounds),
            drafted_at_depth=(sum(drafted for drafted, _ in self.rounds),),
            accepted_at_depth=(sum(accepted for _, accepted in self.rounds),),
        )
        notes = [*self.notes, f"{self.model.assisted_loops} assisted loops"]
        return Written(tokens, texts, stats, notes)


def _count_drafts() -> list[tuple[int, int]]:
    """Record drafted and accepted tokens of every round from now on, as the assisted loop reports them to its
    candidate generator; in the whole process, which runs one system and ends."""
    rounds: list[tuple[int, int]] = []
    inner = AssistedCandidateGenerator.update_candidate_strategy

    def counted(self: Any, input_ids: Any, scores: torch.Tensor, num_matches: Any) -> None:
        rounds.append((scores.shape[1] - 1, int(num_matches)))  # scores [1, drafted + 1, V]
        inner(self, input_ids, scores, num_matches)

    patched: Any = AssistedCandidateGenerator
    patched.update_candidate_strategy = counted
    return rounds
