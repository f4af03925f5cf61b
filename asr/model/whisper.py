"""A pair of models that are ready to decode on a device: what they encode, and who reads their states.

`LogMel` makes the encoders' input of windows of samples: the same numbers as transformers'
WhisperFeatureExtractor, with its filters and sizes, but as one batch on the device, without converting to
numpy. Knows models, engines and devices; nothing of folders, names or recordings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.model_drafter import DraftTokens, ModelDrafter, TreeDrafter
from forescribe.speculative.model_engines import ModelEngine, whisper_decoder
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.models.vocabularies import MappedVocabulary, TokenMap, mapped
from forescribe.speculative.models.weights import encoder_of
from forescribe.speculative.native.adapters import NativeEncoder, NativeWhisperDecoder
from forescribe.speculative.protocols import Processor
from forescribe.speculative.requests import Probe

from ..errors import UsageError
from .presets import Pair
from .rules import whisper_rules
from .states import DraftStates, EncoderStates
from .tokens import SpecialTokens, Task

POSITIONS_PER_S = 50
"""Of an encoder."""

HEARD_BEHIND = 50
"""Positions of silence behind a window, 1 s, that a draft's own encoder hears: 51 % of tiny.en's drafts for
base were kept so, and 53 % where it heard all 30 s, for 2.4 times the time."""


@dataclass(frozen=True, eq=False)
class Whisper:
    """A target with its draft models, on one device.

    `drafts` are in the order of `Pair.drafts`; `extractors` are of the features that their encoders read, the
    target's first.
    """

    target: Any  # PlainWhisper, or WhisperForConditionalGeneration
    drafts: tuple[DraftModel, ...]
    tokenizer: Any
    extractors: tuple[Extractor, ...]
    tokens: SpecialTokens
    pair: Pair
    device: Device
    engine: ModelEngine = ModelEngine.AUTO  # what runs the target's decoder
    beams: int = 1  # with which its windows are searched unless a call says otherwise
    native_encoders: Mapping[Any, NativeEncoder] = field(default_factory=dict)  # by its modules
    attends: ClassVar[bool] = True
    """Its decoder attends to the encoder states. So it writes timestamps, its attention says when words are
    spoken, and places of an answer can be looked at again."""

    def decoder(self) -> SlotModel:
        """The target's decoder, on its engine."""
        return target_decoder(self.target, self.engine, self.device)

    @property
    def shared_encoder(self) -> bool:
        """Whether the first draft uses the encoder states of the target."""
        return bool(self.drafts) and self.drafts[0].shared_encoder

    @property
    def positions(self) -> int:
        """Tokens of a window's prompt and answer."""
        return int(self.target.config.max_target_positions)

    @property
    def prompt_room(self) -> int:
        """Tokens of other text that fit into a prompt: half the positions less one (openai/whisper)."""
        return self.positions // 2 - 1

    def aligner(self, language: str) -> Whisper:
        """The Whisper whose attention times words of a language: itself."""
        return self

    def rules(self) -> tuple[Processor, ...]:
        """Whisper's token rules."""
        target = self.target
        return whisper_rules(target.generation_config, target.config, self.device.torch)

    def prompt(
        self,
        states: EncoderStates,
        language: str | None,
        task: Task,
        *,
        timestamps: bool,
        previous: Sequence[int] = (),
    ) -> tuple[tuple[int, ...], EncoderStates]:
        """The prompt of a window, see `SpecialTokens.prompt`, and its states for it."""
        own = self.tokens.prompt(language, task, timestamps=timestamps, previous=previous)
        return own, states

    def probe(self, prompt: Sequence[int], *, languages: bool = False) -> Probe:
        """Behind start-of-transcript, which is read anyway, so that listening for another language costs
        nothing. A step of the decoder for it alone takes a fifth of the encoder's time. Previous text may
        precede it."""
        slot = len(prompt) - 1 - prompt[::-1].index(self.tokens.start)
        named = tuple(self.tokens.languages.values()) if languages else ()
        return Probe(slot, (self.tokens.no_speech, *named))

    def generated(
        self, states: EncoderStates, prompt: Sequence[int], count: int
    ) -> tuple[int, ...] | None:
        """The answer by transformers' `generate`; None: its windows are compared with those in tests."""
        return None

    @cached_property
    def mels(self) -> tuple[LogMel, ...]:
        """What makes the features of `extractors`."""
        return tuple(LogMel(each, self.device.torch) for each in self.extractors)

    @property
    def mel(self) -> LogMel:
        """What makes the features of the target."""
        return self.mels[0]

    def features(
        self, windows: Sequence[NDArray[np.float32]], searched: Sequence[bool] = ()
    ) -> tuple[Any, ...]:
        """The features of windows, by model, for `encode`. Those that are `searched` with beams are
        padded with zeros in place of silence, as openai/whisper's `transcribe` pads: beside silence, beams
        leave out first words (whisper-base's five 15 of 8,232, and 4 beside zeros). Without beams zeros are
        no better."""
        windows = list(map(amplified, windows))
        made = tuple(mel(windows) for mel in self.mels)
        for row in (row for row, own in enumerate(searched) if own):
            frames = -(-len(windows[row]) // self.mel.hop)
            for features in made:
                features[row, :, frames:] = 0
        return made

    @torch.inference_mode()
    def encode(self, features: Tensor, *others: Tensor) -> list[EncoderStates]:
        """Encoder states of windows from features `[B, M, F]`, by one pass of the target's encoder. A draft's
        own encoder runs when its states are first read. `others` are the features of the further
        `extractors`, in their order. Raises ValueError where they are not as many."""
        given = (features, *others)
        if len(given) != len(self.extractors):
            raise ValueError(f"{len(given)} features; these models read {len(self.extractors)}")
        states = self._encoded(self.target, features)
        drafts: list[Sequence[Tensor | DraftStates]] = [
            states
            if draft.shared_encoder
            else DraftStates.of(
                partial(self._heard, draft.model), map(torch.clone, given[draft.features])
            )
            for draft in self.drafts
        ]
        rows = zip(states, *drafts, strict=True)
        return [EncoderStates(target, tuple(by_draft)) for target, *by_draft in rows]

    def _encoded(self, model: Any, features: Tensor) -> list[Tensor]:
        """States `[S, D]` by row. They are copies: a view would keep the whole batch in memory as long as
        one of its windows is decoded again."""
        encoder, rows = encoder_of(model), len(features)
        if self.device.static_shapes:  # another batch size would be another shape
            padding = (1 << (rows - 1).bit_length()) - rows
            features = torch.cat([features, features[-1:].expand(padding, -1, -1)])
        native = self.native_encoders.get(encoder)
        if native is not None:
            return native(features)
        features = features.to(self.device.torch, encoder.conv1.weight.dtype)
        groups = [features] if self.device.rows_together else features.split(1)
        states = [row.clone() for group in groups for row in encoder(group).last_hidden_state]
        return states[:rows]

    def _heard(self, model: Any, features: Sequence[Tensor]) -> list[Tensor]:
        """States `[S, D]` by row of a draft's own encoder. On the native engine it hears a window up to its
        end, and what follows has the last state: its drafts may be worse, and cost less."""
        native = self.native_encoders.get(encoder_of(model))
        if native is None:
            return self._encoded(model, torch.stack([*features]))
        made = []
        for row in features:
            states = native.states(row[:, : 2 * _heard(row, native.positions)])
            made.append(torch.cat([states, states[-1:].expand(native.positions - len(states), -1)]))
        return made

    def hearing(self, features: Sequence[Tensor]) -> float:
        """What the drafts' own encoders take for a window of `features [M, F]`, by extractor, as a share of
        what the target's takes: by their multiplications. 0 where no draft has one."""
        shares, whole = [0.0], self.target.config.max_source_positions
        for draft in self.drafts:
            if not draft.shared_encoder:
                native = encoder_of(draft.model) in self.native_encoders
                heard = _heard(features[draft.features], whole) if native else whole
                shares.append(_work(draft.model.config, heard) / _work(self.target.config, whole))
        return max(shares)

    @cached_property
    def _reader(self) -> NativeWhisperDecoder | None:
        made = self.decoder() if self.engine is ModelEngine.NATIVE else None
        return made if isinstance(made, NativeWhisperDecoder) else None

    @contextmanager
    def reading(self) -> Iterator[NativeWhisperDecoder | None]:
        """The target's native decoder with room for one row, to read texts beside the engine that decodes;
        None where modules read them: on the other engines."""
        decoder = self._reader
        if decoder is None:
            yield None
            return
        decoder.allocate(1, decoder.max_positions)
        try:
            yield decoder
        finally:
            decoder.release()

    @torch.inference_mode()
    def detect_language(
        self, encoded: list[EncoderStates], among: Sequence[Sequence[str]] | None = None
    ) -> list[tuple[str, float]]:
        """The most probable language of each window, of those of `among`, codes for each window, where it has
        any; and its probability among all that the model knows: low where another one is spoken.

        One decoder step over start-of-transcript (Radford et al. 2022, section 2.3).
        """
        if not self.tokens.multilingual:
            return [("en", 1.0)] * len(encoded)
        codes = list(self.tokens.languages)
        ids = torch.tensor([self.tokens.languages[c] for c in codes], device=self.device.torch)
        probabilities = self._first_logits(encoded)[:, ids].softmax(-1)
        if among is not None and any(among):
            others = [[bool(own) and code not in own for code in codes] for own in among]
            unlisted = torch.tensor(others, device=probabilities.device)
            probabilities = probabilities.masked_fill(unlisted, -1.0)
        best = probabilities.max(-1)
        return [
            (codes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _first_logits(self, encoded: Sequence[EncoderStates]) -> Tensor:
        """The logits `[B, V]` behind start-of-transcript of each window, in float32."""
        start = torch.full((len(encoded), 1), self.tokens.start, device=self.device.torch)
        with self.reading() as decoder:
            if decoder is not None:
                row = torch.zeros(1, dtype=torch.int64)
                read = [decoder.prefill(row, start[:1], [states]).logits for states in encoded]
                return torch.cat(read)[:, -1]
            states = torch.stack([each.target for each in encoded])
            hidden = self.target.model.decoder(
                input_ids=start, encoder_hidden_states=states, use_cache=False
            ).last_hidden_state
            logits: Tensor = self.target.proj_out(hidden)[:, 0].float()
            return logits


def attending(model: Any, what: str) -> Whisper:
    """A `SpeechModel` as a Whisper. Raises UsageError for others, which cannot do `what`."""
    if not model.attends:
        name = Path(model.pair.target).name  # services do not tell where their folders are
        raise UsageError(f"{what}: a Whisper model does that, and {name} is none")
    return cast(Whisper, model)


def end_of(features: Tensor) -> int:
    """The position behind the last one of a window `[M, F]` that is not padding: padding is all alike."""
    differs = (features != features[:, -1:]).any(0).nonzero()
    return int(differs[-1]) // 2 + 1 if len(differs) else 0


def _heard(features: Tensor, positions: int) -> int:
    """As many of the `positions` of a window as a draft's own encoder hears."""
    return min(positions, end_of(features) + HEARD_BEHIND)


def _work(config: Any, positions: int) -> int:
    """Multiplications of an encoder's layers."""
    width, inner = config.d_model, config.encoder_ffn_dim
    each = 4 * width * width + 2 * width * inner + 2 * positions * width
    return int(config.encoder_layers * positions * each)


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A draft on a device, in its number format there.

    `features` says which of the pair's features its encoder reads, 0: the target's. `token_map` is None where
    its ids are the target's, `tokens` where it proposes all of them.
    """

    model: Any  # PlainWhisper, WhisperForConditionalGeneration or WhisperForCausalLM
    device: Device
    engine: ModelEngine = ModelEngine.AUTO
    shared_encoder: bool = False  # it uses the encoder states of the target
    features: int = 0
    token_map: TokenMap | None = None
    tokens: DraftTokens | None = None

    def decoder(self, index: int = 0) -> SlotModel | MappedVocabulary:
        """Its decoder under the target's ids; `index` is that of its states in `EncoderStates.drafts`."""

        def build(listed: Sequence[int] | None) -> SlotModel:
            return whisper_decoder(
                self.model,
                partial(EncoderStates.of_draft, index=index),
                engine=self.engine,
                stored=self.device.stored,
                listed=listed,
            )

        listed = None if self.tokens is None else self.tokens.ids
        if self.token_map is None:
            return build(listed)
        return mapped(build, self.token_map, listed)

    def drafter(self, index: int, confidence: float) -> ModelDrafter:
        return ModelDrafter(self.decoder(index), confidence=confidence)

    def tree_drafter(self) -> TreeDrafter:
        """The same behind beams."""
        return TreeDrafter(self.decoder())


def target_decoder(model: Any, engine: ModelEngine, device: Device) -> SlotModel:
    """The decoder of a target on its engine."""
    return whisper_decoder(model, attrgetter("target"), engine=engine, stored=device.stored)


@dataclass(frozen=True, eq=False)
class Extractor:
    """The sizes of a model's features and their filters, as of transformers' WhisperFeatureExtractor."""

    feature_size: int = 80
    sampling_rate: int = 16000
    hop_length: int = 160
    chunk_length: int = 30  # seconds
    n_fft: int = 400

    @property
    def n_samples(self) -> int:
        return self.chunk_length * self.sampling_rate

    @cached_property
    def mel_filters(self) -> NDArray[np.float64]:
        """Triangles `[n_fft / 2 + 1, M]` of equal area up to 8 kHz, on Slaney's scale: linear to 1 kHz,
        logarithmic above."""
        knee, step = 15.0, np.log(6.4) / 27.0
        top = knee + np.log(8000.0 / 1000.0) * (27.0 / np.log(6.4))
        mels = np.linspace(0.0, top, self.feature_size + 2)
        edges = 200.0 * mels / 3.0
        edges[mels >= knee] = 1000.0 * np.exp(step * (mels[mels >= knee] - knee))
        bins = np.linspace(0, self.sampling_rate // 2, 1 + self.n_fft // 2)
        width, distance = np.diff(edges), edges[None] - bins[:, None]
        filters = np.maximum(
            0.0, np.minimum(-distance[:, :-2] / width[:-1], distance[:, 2:] / width[1:])
        )
        filters *= 2.0 / (edges[2:] - edges[:-2])
        return filters


QUIET, HEARD = 0.01, 0.1
"""Peaks. Whisper's features are not free of scale: powers end at 1e-10, and a constant is added to their
logarithms. With peaks at -50, -60 and -70 dB whisper-base writes 3, 7 and 17 of 81 words otherwise than at
full scale, amplified none."""


def amplified(window: NDArray[np.float32]) -> NDArray[np.float32]:
    """A window with a peak below QUIET, amplified to HEARD; every other one unchanged."""
    peak = np.abs(window).max(initial=0.0)
    return window * np.float32(HEARD / max(peak, 1e-9)) if peak < QUIET else window


LEAST_POWER = 1e-10
SILENT = -10.0  # the logarithm of that, without rounding in float32


class LogMel:
    """Computes Whisper's features. Built once per model and device.

    M is the extractor's number of mel bands, F its frames (3000 for 30 s), S its samples (480,000).
    A feature extractor's `dither` is not applied: it is random noise for training. Source: Radford
    et al. 2022, section 2.2; `WhisperFeatureExtractor._torch_extract_fbank_features`.
    """

    def __init__(self, extractor: Extractor, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.samples, self.n_fft = extractor.n_samples, extractor.n_fft
        self.hop = extractor.hop_length
        filters = extractor.mel_filters.astype(np.float32).T  # [M, n_fft / 2 + 1]
        self.filters = torch.from_numpy(np.ascontiguousarray(filters)).to(self.device)
        self.hann = torch.hann_window(self.n_fft, device=self.device)

    @property
    def frames(self) -> int:
        """F."""
        return self.samples // self.hop

    def __call__(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Features [B, M, F] float32 of B windows [up to S], which are padded with zeros.

        Raises ValueError for a window longer than S: truncating it would lose words silently.
        """
        for window in windows:
            if window.ndim != 1 or len(window) > self.samples:
                raise ValueError(f"window of shape {window.shape}; expected [up to {self.samples}]")
        if self.device.type != "cpu":
            return self._features(windows, self.samples)
        # One at a time, as eight do not fit a CPU's caches, and only the frames that hold sound.
        return torch.cat([self._features([w], self._reach(len(w))) for w in windows])

    def _reach(self, count: int) -> int:
        """The samples behind which no frame holds one of the first `count`."""
        return min(self.samples, -(-(count + self.n_fft) // self.hop) * self.hop)

    def _features(self, windows: Sequence[NDArray[np.float32]], reach: int) -> Tensor:
        """[B, M, F] from the first `reach` samples."""
        padded = np.zeros((len(windows), reach), np.float32)
        for row, window in zip(padded, windows, strict=True):
            row[: len(window)] = window
        mel = self._log(torch.from_numpy(padded).to(self.device))[..., :-1]
        mel = functional.pad(mel, (0, self.frames - mel.shape[-1]), value=SILENT)
        # The maximum [B, 1, 1] is per window, so that it does not depend on the rest of the batch.
        loudest = mel.amax(dim=(1, 2), keepdim=True)
        return (torch.maximum(mel, loudest - 8.0) + 4.0) / 4.0

    def _log(self, samples: Tensor) -> Tensor:
        """The log10 mel power [B, M, K] of the frames of [B, samples]."""
        spectrum = torch.stft(
            samples, self.n_fft, self.hop, window=self.hann, center=True, return_complex=True
        )
        return (self.filters @ spectrum.abs().square()).clamp(min=LEAST_POWER).log10()
