"""The base of the adapters of causal LMs: limits, windows, the draft's vocabulary, and the comparison.

What a model's configuration says about positions and windows, and which it excludes, is read here; what it
does not contain is tested on the model itself (`agreement`). Knows a model's configuration and its plain
forward; nothing of how an adapter computes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import LoadError, one_line
from .agreement import LENGTH, Closeness, Reading, dependence, difference
from .checkpoint import inexact, method_of
from .quantized import is_int8
from .slot_model import SlotModel, chunk_mask, window_mask

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""The name in a configuration of each kind's width."""

OTHERS = "take a model of another family (docs/text.md lists those that were tested)"

NARROW = 5
"""Width of windows while a model is checked, so that a few tokens exceed them."""

_WIDTH = re.compile(r"window(_size|_len)?$|^index_")

_checked: WeakKeyDictionary[Any, set[tuple[type, torch.dtype]]] = WeakKeyDictionary()
"""The adapters, and the dtypes in which they round, that have been compared with each model."""


class CausalModel(SlotModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows, and the cache is allocated for it; None takes the model's own limit.
    `vocab` is the target's number of tokens where this model is a draft: models of one family pad the same
    vocabulary to different sizes, and tokens that only one of them has are never proposed. `stored` and
    `listed` are as of `WhisperModel`.

    The first adapter of its class compares itself with the model's plain forward. Raises LoadError, with
    the model's type, where they differ, for layers that the adapter cannot run, and for more positions than
    the model has.
    """

    rounded: torch.dtype
    """The least exact dtype between weights and logits: the model's, unless `prepare` sets another."""

    def __init__(
        self,
        model: Any,
        positions: int | None = None,
        vocab: int | None = None,
        *,
        stored: torch.dtype | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config.get_text_config()
        limit = positions_of(config)
        if positions is not None and positions > limit:
            raise LoadError(f"{config.model_type} has {limit} positions, not {positions}")
        kinds = kinds_of(config)
        strange = strange_windows(config, limit)
        if strange:
            raise LoadError(
                f"{config.model_type} is not supported: beyond {strange} of its config.json its layers "
                f"select what they read by other rules; {OTHERS}"
            )
        self.model, self.config, self.kinds = model, config, kinds
        self.widths = widths_of(config, kinds)
        both = min(vocab or config.vocab_size, config.vocab_size)  # tokens that both models have
        super().__init__(
            device=model.device,
            dtype=model.dtype,
            vocab_size=vocab or config.vocab_size,
            positions=limit,
            layers=config.num_hidden_layers,
            listed=None if listed is None else [t for t in listed if t < both],
        )
        self.room = config.vocab_size - self.vocab_size  # for tokens that the target does not have
        self.rounded = self.dtype
        self.prepare(stored or self.dtype)
        seen, form = _checked.setdefault(model, set()), (type(self), self.rounded)
        if form not in seen:
            self._check()
            seen.add(form)
        self._positions = positions or limit

    @abstractmethod
    def prepare(self, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def known_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens without an embedding are read as another one: drafts are guesses."""
        return tokens if self.room >= 0 else tokens.clamp_max(self.vocab_size + self.room - 1)

    def own_vocabulary(self, logits: Tensor) -> Tensor:
        """Logits `[B, N, config.vocab_size]` as those of `vocab_size` tokens, in float32."""
        logits = self.whole(logits.float())
        if self.listed is not None:
            return logits
        if self.room < 0:
            return pad(logits, (0, -self.room), value=float("-inf"))
        return logits if self.room == 0 else logits[..., : self.vocab_size].contiguous()

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.model.get_input_embeddings()(self.known_tokens(tokens))
        return embedded

    def head(self, states: Tensor) -> Tensor:
        return self.own_vocabulary(self.model.get_output_embeddings()(states))

    def masks(self, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """The masks of each kind of layer; `mask [B, 1, N, length]` is that of full attention."""
        masks = {FULL: mask}
        if SLIDING in self.widths:
            masks[SLIDING] = window_mask(mask, positions, self.widths[SLIDING])
        if CHUNKED in self.widths:
            masks[CHUNKED] = chunk_mask(mask, positions, self.widths[CHUNKED])
        return masks

    def _check(self) -> None:
        """Raises LoadError where this adapter computes other logits than its model."""
        name = self.config.model_type
        try:
            problem = self._difference()
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            # Its forward does not know masks or positions: many ways to fail.
            raise LoadError(
                f"{name} cannot be given positions and masks row by row, which a batch of ragged texts "
                f"needs ({type(error).__name__}: {one_line(error)}); {OTHERS}"
            ) from error
        if problem is not None:
            method = method_of(self.config)
            if method is not None:
                raise inexact(method, problem)
            raise LoadError(f"{name} is not supported: {problem}; {OTHERS}")

    @torch.inference_mode()
    def _difference(self) -> str | None:
        """A description of what differs from the model's own forward; None where nothing does."""
        if self._positions < LENGTH:
            return f"it has {self._positions} positions, fewer than {LENGTH}"
        reading = self._reading(LENGTH)
        plain = self._plain(reading.tokens)
        if not bool(plain.isfinite().any(-1).all()):
            return f"its logits are no numbers in {str(self.dtype).removeprefix('torch.')}"
        strange = self._strange_positions(reading, plain, self._closeness(self.dtype, reading))
        if strange is not None:
            return strange
        close = self._closeness(self.rounded, reading)
        with self._narrowed() as narrowed:
            narrow = self._plain(reading.tokens) if narrowed else plain
            where = difference(self, narrow, reading, close)
        if narrowed and narrow.equal(plain):
            return "its layers do not read the windows that its config.json names"
        if where is None:
            if self.invariant and is_int8(self.model):
                where = dependence(self, reading)
            return where and f"in 8-bit integers its logits of {where}"
        wide = " with windows" if self.widths else ""
        return f"logits behind {where}{wide} are not those of its plain forward"

    def _closeness(self, dtype: torch.dtype, reading: Reading) -> Closeness:
        embedding = self.model.get_input_embeddings()
        plain = lambda: self._plain(reading.tokens)  # noqa: E731
        return Closeness.of(dtype, embedding, plain, int8=is_int8(self.model))

    def _reading(self, length: int) -> Reading:
        vocab = min(self.config.vocab_size, self.vocab_size)
        return Reading.of(
            vocab, length, self.device, special_tokens(self.config, self.model.config)
        )

    def _plain(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        given = {} if positions is None else {"position_ids": positions}
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, **given).logits
        return logits.float()

    def _strange_positions(self, reading: Reading, plain: Tensor, close: Closeness) -> str | None:
        """A description of an unusual meaning of positions, None where there is none: a row at the last
        positions must not change the other rows."""
        places = torch.arange(LENGTH, device=self.device).repeat(len(plain), 1)
        late = places.clone()
        late[-1] += self._positions - LENGTH
        if not close.differ(self._plain(reading.tokens, late)[:-1], plain[:-1]):
            return None
        if close.differ(self._plain(reading.tokens, places), plain):
            return "it does not count positions from 0"
        return "what it computes for a text depends on how long the others in its batch are"

    @contextmanager
    def _narrowed(self) -> Iterator[bool]:
        """Narrows the windows of model and adapter to `NARROW`; yields whether any was wider. Models read
        the width from their configuration whenever they build masks."""
        widths = self.widths
        try:
            self.widths = {kind: min(width, NARROW) for kind, width in widths.items()}
            self._configure(self.widths)
            yield self.widths != widths
        finally:
            self.widths = widths
            self._configure(widths)

    def _configure(self, widths: dict[str, int]) -> None:
        for kind, width in widths.items():
            setattr(self.config, WINDOWS[kind], width)


def positions_of(config: Any) -> int:
    """The number of positions at which a token's computation depends only on the tokens before it.

    Rotary frequencies of the type "longrope" change for all texts of a batch once one is longer than
    those of the training ("dynamic" ones do so behind `max_position_embeddings`): keys of one text
    would be rotated by different frequencies. Llama 4 scales its queries by a count that it takes from
    the cache. Raises LoadError for a model without a limit.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise LoadError(
            f"{config.model_type} does not define how many positions it has "
            "(max_position_embeddings): models with other position encodings are not supported"
        )
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        if rope.get("rope_type") == "longrope":
            trained = rope.get("original_max_position_embeddings")
            limit = min(limit, trained if isinstance(trained, int) else limit)
    scale = getattr(config, "floor_scale", None)
    if getattr(config, "attn_temperature_tuning", False) and scale:
        limit = min(limit, int(scale) - 1)
    return limit


def kinds_of(config: Any) -> set[str]:
    """The kinds of attention that a configuration names for its layers. Raises LoadError for others than
    those of `WINDOWS` and full attention."""
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {FULL, *WINDOWS}
    if unknown:
        raise LoadError(
            f"{config.model_type}: layers of {', '.join(sorted(unknown))} are not supported"
        )
    return kinds


def widths_of(config: Any, kinds: set[str]) -> dict[str, int]:
    """The width of each kind of layer that has one."""
    return {
        kind: width
        for kind, name in WINDOWS.items()
        if (width := getattr(config, name, None)) is not None
        # Without layer types a window is every layer's; with them it is of those that say so.
        and (kind in kinds or (kind == SLIDING and not kinds))
    }


def strange_windows(config: Any, limit: int) -> str:
    """A width that our masks do not implement, as `window_size 256`: GPT-Neo's local layers, Doge's choice
    of keys, indexed attention. Shorter texts are computed correctly, so no short comparison finds it."""
    for name, value in config.to_dict().items():
        number = isinstance(value, int) and not isinstance(value, bool)
        if _WIDTH.search(name) and name not in WINDOWS.values() and number and 0 < value < limit:
            return f"{name} {value}"
    return ""


def cache_numbers(config: Any) -> int:
    """Numbers that the caches keep for a position of one row: keys and values of all layers, none of which
    is taken to be shorter than the text."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    plain = config.hidden_size // config.num_attention_heads
    latent = getattr(config, "qk_nope_head_dim", 0) + getattr(config, "qk_rope_head_dim", 0)
    size = max(getattr(config, "head_dim", None) or plain, latent)
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size)


def special_tokens(*configs: Any) -> set[int]:
    """Special tokens: image placeholders, padding."""
    found: set[int] = set()
    for config in configs:
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update(i for i in (value if isinstance(value, list) else [value])
                             if isinstance(i, int))  # fmt: skip
    return found


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: one set, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]
