"""The base of the adapters of causal LMs: limits, windows, and the draft's vocabulary.

What a model's configuration says about positions and windows, and which it excludes, is read here; what it
does not contain is tested on the model itself, once, when it is loaded (`check`).

The adapter of transformers' modules passes its own positions and masks, and writes keys to slots. A model
that masks, scales or counts by other means inside its layers accepts all of that without an error, and
writes other tokens. Any family may come, so a few tokens are read twice: through the adapter as the engine
uses it (prompts of different lengths admitted together, several tokens scored at ragged starts, rejected
drafts overwritten), and by the model's plain forward without a cache. That takes about nine forwards of at
most 42 tokens; windows are made narrow for them.

Knows a model's configuration; nothing of how an adapter computes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import LoadError, RequestError, one_line
from ..requests import Request
from ..types import Embedded, States
from .checkpoint import method_of
from .plain import EXACT
from .slot_model import SlotModel, chunk_mask, window_mask

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""The name in a configuration of each kind's width."""

OTHERS = "take a model of another family (docs/text.md lists those that were tested)"

_WIDTH = re.compile(r"window(_size|_len)?$|^index_")

ROWS = 3
LENGTH = 14
"""Tokens of each row: enough for a prompt, a round with rejections and the round after it."""
STEP = 4
"""Tokens that a round scores."""
PROMPTS, KEPT = (3, LENGTH - 5, LENGTH - 8), (3, 0, 1)
"""How many tokens of each row are prefilled, and how many drafts the first round keeps."""
NARROW = 5
"""Width of windows while a model is checked, so that a few tokens exceed them."""

BOUND = 0.01
"""Root mean square of the difference, as a share of the logits' spread. In float32 it must hold at every
position: kernels of another shape differ by 1e-6 to 1e-5, a key more or less under a mask by tenths."""
NOISE = 3.0
"""In float16 and bfloat16 the median of the positions may be this many times what one unit in the last
place of the embeddings does. Fourteen families came to 0.0 to 0.9, four that compute something else to 8 to
57."""


class CausalModel(SlotModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows, and the cache is allocated for it; None takes the model's own limit.
    `vocab` is the target's number of tokens where this model is a draft: models of one family pad the same
    vocabulary to different sizes, and tokens that only one of them has are never proposed. `stored` is
    as of `WhisperModel`. `pick` selects this model's own embeddings from the encoder states of a request;
    None: its prompt is tokens alone.

    Raises LoadError, with the model's type, for layers that the adapter cannot run, and for more positions
    than the model has.
    """

    def __init__(
        self,
        model: Any,
        positions: int | None = None,
        vocab: int | None = None,
        *,
        stored: torch.dtype | None = None,
        pick: Callable[[Any], Embedded | None] = lambda encoder_states: encoder_states,
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
        self.model, self.config, self.kinds, self.pick = model, config, kinds, pick
        self.widths = widths_of(config, kinds)
        super().__init__(
            device=model.device,
            dtype=model.dtype,
            vocab_size=vocab or config.vocab_size,
            positions=limit,
            layers=config.num_hidden_layers,
        )
        self.room = config.vocab_size - self.vocab_size  # for tokens that the target does not have
        self.max_positions = positions or limit
        self.prepare(stored or self.dtype)

    @abstractmethod
    def prepare(self, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def known_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens without an embedding are read as another one: drafts are guesses."""
        return tokens if self.room >= 0 else tokens.clamp_max(self.vocab_size + self.room - 1)

    def own_vocabulary(self, logits: Tensor) -> Tensor:
        """Logits `[B, N, config.vocab_size]` as those of `vocab_size` tokens, in float32."""
        logits = logits.float()
        if self.room < 0:
            return pad(logits, (0, -self.room), value=float("-inf"))
        return logits if self.room == 0 else logits[..., : self.vocab_size].contiguous()

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.model.get_input_embeddings()(self.known_tokens(tokens))
        return embedded

    def head(self, states: Tensor) -> Tensor:
        scale = getattr(self.config, "logits_scaling", 1)
        states = states if scale == 1 else states / scale
        return self.own_vocabulary(self.model.get_output_embeddings()(states))

    def check_request(self, request: Request) -> None:
        self.run_of(request.encoder_states, len(request.prompt) - 1)

    def run_of(self, encoder_states: Any, room: int) -> Embedded | None:
        """This model's own embeddings of a request; they end at place `room` at the latest. Raises
        `RequestError` for those that do not fit."""
        run = self.pick(encoder_states)
        if run is None:
            return None
        if not isinstance(run, Embedded):
            kind = type(run).__name__
            raise RequestError(
                f"{self.config.model_type} reads embeddings in its prompt, not a {kind}"
            )
        own, width = run.states.shape[1], self.config.hidden_size
        if own != width:
            raise RequestError(f"embeddings of {own} numbers; those of the model have {width}")
        if run.end > room:
            raise RequestError(
                f"embeddings end at place {run.end} of the prompt; they have to end at {room}, before its "
                "last token"
            )
        return run

    def embedded(
        self,
        tokens: Tensor,
        encoder_states: States,
        embed: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor | None:
        runs = [self.run_of(states, tokens.shape[1]) for states in encoder_states]
        if not any(runs):
            return None
        embedded = (embed or self.embed)(tokens)
        for row, run in zip(embedded, runs, strict=True):
            if run is not None:
                row[run.at : run.end].copy_(run.states)
        return embedded

    def masks(self, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """The masks of each kind of layer; `mask [B, 1, N, length]` is that of full attention."""
        masks = {FULL: mask}
        if SLIDING in self.widths:
            masks[SLIDING] = window_mask(mask, positions, self.widths[SLIDING])
        if CHUNKED in self.widths:
            masks[CHUNKED] = chunk_mask(mask, positions, self.widths[CHUNKED])
        return masks


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


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: one set, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]


def check(decoder: CausalModel) -> None:
    """Raises LoadError where the adapter of a model computes other logits than it; the adapter's cache is
    released."""
    name = decoder.config.model_type
    try:
        problem = _problem(decoder)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Its forward does not know masks or positions: many ways to fail.
        raise LoadError(
            f"{name} cannot be given positions and masks row by row, which a batch of ragged texts "
            f"needs ({type(error).__name__}: {one_line(error)}); {OTHERS}"
        ) from error
    if problem is not None:
        # Quantised weights whose activations are rounded too turn a last bit into a whole step.
        plain = method_of(decoder.config) is None
        advice = OTHERS if plain else "take its plain weights, with --quantize int8"
        raise LoadError(f"{name} is not supported: {problem}; {advice}")


@torch.inference_mode()
def _problem(decoder: CausalModel) -> str | None:
    """What differs from the model's own forward; None where nothing does."""
    limit = positions_of(decoder.config)
    if limit < LENGTH:
        return f"it has {limit} positions, fewer than {LENGTH}"
    vocab = min(decoder.config.vocab_size, decoder.vocab_size)
    tokens = arbitrary(vocab, decoder.device, special_tokens(decoder.config, decoder.model.config))

    def plain(positions: Tensor | None = None) -> Tensor:
        given = {} if positions is None else {"position_ids": positions}
        logits: Tensor = decoder.model(input_ids=tokens, use_cache=False, **given).logits
        return logits.float()

    known = plain()
    if not bool(known.isfinite().any(-1).all()):
        return f"its logits are no numbers in {str(decoder.dtype).removeprefix('torch.')}"
    close = Closeness.of(decoder.dtype, decoder.model.get_input_embeddings(), plain)
    # A row at the last positions must not change the other rows.
    places = torch.arange(LENGTH, device=decoder.device).repeat(ROWS, 1)
    late = places.clone()
    late[-1] += limit - LENGTH
    if close.differ(plain(late)[:-1], known[:-1]):
        if close.differ(plain(places), known):
            return "it does not count positions from 0"
        return "what it computes for a text depends on how long the others in its batch are"
    with _narrowed(decoder) as narrowed:
        narrow = plain() if narrowed else known
        where = difference(decoder, narrow, tokens, close)
    if narrowed and narrow.equal(known):
        return "its layers do not read the windows that its config.json names"
    wide = " with windows" if decoder.widths else ""
    return where and f"logits behind {where}{wide} are not those of its plain forward"


def difference(decoder: CausalModel, plain: Tensor, tokens: Tensor, close: Closeness) -> str | None:
    """Where the adapter first differs from `plain`, the model's logits `[ROWS, L, V]` for these tokens; None
    where it does not."""
    device, listed = tokens.device, decoder.listed
    if listed is not None:  # the only ones whose logits it computes
        plain = plain[..., listed]

    other = tokens.flip(0, 1)  # as padding and as drafts that are rejected
    prompts = list(PROMPTS)
    lengths = torch.tensor(prompts, device=device)
    decoder.allocate(ROWS, tokens.shape[1] + STEP)
    try:
        for rows in ([1], [2, 0]):
            length = max(prompts[row] for row in rows)
            own = torch.arange(length, device=device) < lengths[:, None]
            padded = torch.where(own, tokens[:, :length], other[:, :length])
            places = torch.tensor(rows, device=device)
            decoder.prefill(places, padded[rows], [None] * len(rows))
        for drafted, what in ((KEPT, "several tokens at once"), (None, "a text behind rejections")):
            start = torch.tensor([p - 1 for p in prompts], device=device)
            slots = start[:, None] + torch.arange(STEP, device=device)
            fed = tokens.gather(1, slots)
            valid = torch.full((ROWS,), STEP, device=device)
            if drafted is not None:
                valid = torch.tensor(drafted, device=device) + 1
                right = torch.arange(STEP, device=device) < valid[:, None]
                fed = torch.where(right, fed, other.gather(1, slots))
            logits = decoder.score(fed, start, reach=tokens.shape[1] + STEP).logits
            read = torch.arange(STEP, device=device) < valid[:, None]
            row = torch.arange(ROWS, device=device)[:, None].expand_as(slots)
            logits = logits if listed is None else logits[..., listed]
            if close.differ(logits[read], plain[row[read], slots[read]]):
                return what
            prompts = [p + n for p, n in zip(prompts, KEPT, strict=True)]
    finally:
        decoder.release()
    return None


@contextmanager
def _narrowed(decoder: CausalModel) -> Iterator[bool]:
    """Narrows the windows of model and adapter to `NARROW`; yields whether any was wider. Models read
    the width from their configuration whenever they build masks."""
    widths = decoder.widths
    try:
        decoder.widths = {kind: min(width, NARROW) for kind, width in widths.items()}
        _configure(decoder)
        yield decoder.widths != widths
    finally:
        decoder.widths = widths
        _configure(decoder)


def _configure(decoder: CausalModel) -> None:
    for kind, width in decoder.widths.items():
        setattr(decoder.config, WINDOWS[kind], width)


def arbitrary(vocab: int, device: torch.device, avoid: Collection[int] = ()) -> Tensor:
    """Tokens `[ROWS, LENGTH]` below `vocab`, the same every time; those in `avoid` only where there are no
    others."""
    generator = torch.Generator().manual_seed(0)
    usable = torch.tensor([i for i in range(vocab) if i not in avoid] or list(range(vocab)))
    picks = torch.randint(len(usable), (ROWS, LENGTH), generator=generator)
    return usable[picks].to(device)


def special_tokens(*configs: Any) -> set[int]:
    """Special tokens: image placeholders, padding."""
    found: set[int] = set()
    for config in configs:
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update(i for i in (value if isinstance(value, list) else [value])
                             if isinstance(i, int))  # fmt: skip
    return found


@dataclass(frozen=True)
class Closeness:
    """How close two computations of the same logits must be in a dtype; `noise` 0: as in float32."""

    dtype: torch.dtype
    noise: float = 0.0

    @classmethod
    def of(
        cls, dtype: torch.dtype, embedding: torch.nn.Module, read: Callable[[], Tensor]
    ) -> Closeness:
        """Measures rounding in half precision: `read` computes the same logits twice, with and without noise
        in the embeddings."""
        if dtype in EXACT:
            return cls(dtype)
        unit = torch.finfo(dtype).eps
        generator = torch.Generator().manual_seed(0)

        def shaken(module: torch.nn.Module, args: Any, output: Tensor) -> Tensor:
            signs = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
            return output * (1 + unit * signs.to(output.device, output.dtype))

        quiet = read()
        handle = embedding.register_forward_hook(shaken)
        try:
            loud = read()
        finally:
            handle.remove()
        return cls(dtype, max(unit, float(_share(loud, quiet).median())))

    def differ(self, ours: Tensor, theirs: Tensor) -> bool:
        """Whether logits `[..., V]` differ by more than rounding. One vocabulary may be larger than the
        other."""
        share = _share(ours, theirs)
        if not self.noise:
            return not bool((share <= BOUND).all())  # `not`, so that NaN counts as a difference
        return not bool(share.median() <= NOISE * self.noise)


def _share(ours: Tensor, theirs: Tensor) -> Tensor:
    """The difference at every position as a share of the spread of `theirs`."""
    room = min(ours.shape[-1], theirs.shape[-1])
    # On the host: mps has no float64.
    ours, theirs = (logits[..., :room].cpu().double() for logits in (ours, theirs))
    known = theirs.isfinite()
    gap = torch.where(known, ours - theirs, 0.0).square().mean(-1).sqrt()
    return gap / torch.where(known, theirs, 0.0).std(-1).clamp_min(1e-6)


def text_tower(model: Any) -> Any:
    """The causal LM inside a model that reads more than text, such as a speech LLM of transformers
    (`model.language_model` and `lm_head`): of the plain class of its family, over the same modules. Raises
    LoadError for a model that has none, or one of its own kind."""
    from transformers import AutoModelForCausalLM

    tower, name = getattr(model.base_model, "language_model", None), model.config.model_type
    if tower is None or model.get_output_embeddings() is None:
        raise LoadError(f"{name} has no text model with an output layer")
    try:
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(tower.config).eval()
    except ValueError as error:
        raise LoadError(f"{name}: its text model has no class of its own") from error
    if type(made.base_model) is not type(tower):
        raise LoadError(f"{name}: its text model is a {type(tower).__name__}")
    setattr(made, made.base_model_prefix, tower)
    made.set_output_embeddings(model.get_output_embeddings())
    return made
