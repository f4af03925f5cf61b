"""Text LLMs under the core's `Model` protocol, over unmodified transformers classes.

Llama, Qwen, Gemma, Mistral, GPT-2 and every other decoder whose attention is full, a sliding window or
in chunks: the mask alone determines what a layer reads, so families need no code of their own. A window
saves no memory here, as the cache holds all positions, but the tokens are exact.

What a configuration does not contain is tested on the model itself: see `speculative.models.agreement`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicCache

from ..drafts import Scores
from ..errors import LoadError
from .agreement import LENGTH, Closeness, Reading, difference
from .cache import LayerShape, SlotCache, chunk_mask, window_mask
from .slot_model import ModuleModel

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""The name in a configuration of each kind's width."""

_WIDTH = re.compile(r"window(_size|_len)?$|^index_")

NARROW = 5
"""Width of windows while a model is checked, so that a few tokens exceed them."""

_checked: WeakSet[Any] = WeakSet()  # models whose adapter has been compared with them


class CausalDecoder(ModuleModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows, and the cache is allocated for it; None takes the model's own limit.
    `vocab` is the target's number of tokens where this model is a draft: models of one family pad the same
    vocabulary to different sizes, and tokens that only one of them has are never proposed.

    The first adapter of a model compares itself with the model's plain forward. Raises LoadError, with
    the model's type, where they differ, for layers that cache something other than plain keys and values
    (recurrent, compressed), and for more positions than the model has.
    """

    def __init__(self, model: Any, positions: int | None = None, vocab: int | None = None) -> None:
        config = model.config.get_text_config()
        limit = positions_of(config)
        if positions is not None and positions > limit:
            raise LoadError(f"{config.model_type} has {limit} positions, not {positions}")
        kinds = set(getattr(config, "layer_types", None) or ())
        unknown = kinds - {FULL, *WINDOWS}
        if unknown:
            raise LoadError(
                f"{config.model_type}: layers of {', '.join(sorted(unknown))} are not supported"
            )
        strange = _strange_windows(config, limit)
        if strange:
            raise LoadError(
                f"{config.model_type} is not supported: beyond {strange} of its config.json its layers "
                f"select what they read by other rules; {OTHERS}"
            )
        self.model, self.config, self.kinds = model, config, kinds
        self.widths: dict[str, int] = {
            kind: width
            for kind, name in WINDOWS.items()
            if (width := getattr(config, name, None)) is not None
            # Without layer types a window is every layer's; with them it is of those that say so.
            and (kind in kinds or (kind == SLIDING and not kinds))
        }
        super().__init__(
            device=model.device,
            dtype=model.dtype,
            vocab_size=vocab or config.vocab_size,
            positions=limit,
        )
        self.room = config.vocab_size - self.vocab_size  # for tokens that the target does not have
        self.layers = _shapes(model, config.model_type)
        if model not in _checked:
            self._check()
            _checked.add(model)
        self._positions = positions or limit

    def new_cache(self, batch: int, slots: int) -> SlotCache:
        return SlotCache(
            batch=batch, slots=slots, layers=self.layers, dtype=self.dtype, device=self.device
        )

    @torch.inference_mode()
    def prefill(self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any]) -> Tensor:
        """Skips the head, as prompt logits are not used: returns `[K, 0, V]`."""
        cache, at = self._allocated().prefill(rows), self.prompt_places(tokens)
        self.model.base_model(**self._inputs(tokens, at.positions, at.mask, cache))
        return torch.empty((len(tokens), 0, self.vocab_size), device=self.device)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Cache,
        encoder_states: Tensor | None,
    ) -> Scores:
        logits = self.model(**self._inputs(tokens, positions, mask, cache)).logits.float()
        if self.room < 0:
            logits = pad(logits, (0, -self.room), value=float("-inf"))
        return Scores(logits[..., : self.vocab_size])

    def _inputs(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache
    ) -> dict[str, Any]:
        if self.room < 0:  # a token without an embedding is read as another: drafts are guesses
            tokens = tokens.clamp_max(self.vocab_size + self.room - 1)
        return {
            "input_ids": tokens,
            "position_ids": positions,
            "attention_mask": self._masks(mask, positions),
            "past_key_values": cache,
            "use_cache": True,
        }

    def _masks(self, mask: Tensor, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """The masks of each kind of layer; `mask [B, 1, N, length]` is that of full attention."""
        masks = {FULL: mask}
        if SLIDING in self.widths:
            masks[SLIDING] = window_mask(mask, positions, self.widths[SLIDING])
        if CHUNKED in self.widths:
            masks[CHUNKED] = chunk_mask(mask, positions, self.widths[CHUNKED])
        if self.kinds and len(masks) > 1:
            return masks
        return masks.get(SLIDING, mask)

    # -- the model's plain forward ------------------------------------------------------------------

    def _check(self) -> None:
        """Raises LoadError where this adapter computes other logits than its model."""
        name = self.config.model_type
        try:
            problem = self._difference()
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except (
            Exception
        ) as error:  # its forward does not know masks or positions: many ways to fail
            line = " ".join(str(error).split())[:150]
            raise LoadError(
                f"{name} cannot be given positions and masks row by row, which a batch of ragged texts "
                f"needs ({type(error).__name__}: {line}); {OTHERS}"
            ) from error
        if problem is not None:
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
        close = Closeness.of(
            self.dtype, self.model.get_input_embeddings(), lambda: self._plain(reading.tokens)
        )
        strange = self._strange_positions(reading, plain, close)
        if strange is not None:
            return strange
        with self._narrowed() as narrowed:
            narrow = self._plain(reading.tokens) if narrowed else plain
            where = difference(self, narrow, reading, close)
        if narrowed and narrow.equal(plain):
            return "its layers do not read the windows that its config.json names"
        if where is None:
            return None
        wide = " with windows" if self.widths else ""
        return f"logits behind {where}{wide} are not those of its plain forward"

    def _reading(self, length: int) -> Reading:
        vocab = min(self.config.vocab_size, self.vocab_size)
        return Reading.of(vocab, length, self.device, _specials(self.config, self.model.config))

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


OTHERS = "take a model of another family (docs/text.md lists those that were tested)"


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


def _strange_windows(config: Any, limit: int) -> str:
    """A width that our masks do not implement, as `window_size 256`: GPT-Neo's local layers, Doge's choice
    of keys, indexed attention. Shorter texts are computed correctly, so no short comparison finds it."""
    for name, value in config.to_dict().items():
        number = isinstance(value, int) and not isinstance(value, bool)
        if _WIDTH.search(name) and name not in WINDOWS.values() and number and 0 < value < limit:
            return f"{name} {value}"
    return ""


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: one set, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]


def _specials(*configs: Any) -> set[int]:
    """Special tokens: image placeholders, padding."""
    found: set[int] = set()
    for config in configs:
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update(i for i in (value if isinstance(value, list) else [value])
                             if isinstance(i, int))  # fmt: skip
    return found


@torch.inference_mode()
def _shapes(model: Any, name: str) -> list[LayerShape]:
    """Heads and sizes of each layer's keys and values, from those of one token: configurations define them
    in a dozen ways."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    refusal = LoadError(f"{name}: its layers do not cache plain keys and values")
    try:
        cache = model(input_ids=token, use_cache=True).past_key_values
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        line = " ".join(str(error).split())[:150]
        raise LoadError(
            f"{name} keeps no keys and values that a cache could hold ({type(error).__name__}: {line})"
        ) from error
    shapes = []
    for layer in cache.layers if isinstance(cache, DynamicCache) else ():
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
            raise refusal
        if keys.dim() != 4 or keys.shape[:3] != values.shape[:3] or keys.shape[2] != 1:
            raise refusal
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
    if not shapes:
        raise refusal
    return shapes
