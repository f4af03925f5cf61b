"""whisper.cpp's `ggml-*.bin` and openai-whisper's `.pt` to Hugging Face folders: both use OpenAI's names.

    folder = converted(Path("models/ggml-base.bin"))   # in the user's cache, once

Numbers are copied as they are; those that whisper.cpp has quantised become float32, each the value that its
block stands for. Sizes are compared with the dimensions before anything is allocated, pickles are
read by torch's `weights_only`, and nothing of a file is executed.

Formats: ggml-org/whisper.cpp `models/convert-pt-to-ggml.py` and `src/whisper.cpp`; openai/whisper
`whisper/model.py`. Import is light.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ...installing import how_to_install
from .converting import (
    Content,
    MappedFile,
    Settings,
    Source,
    convert_once,
    described,
    heads_of,
)
from .openai_models import (
    BESIDE,
    LONGEST,
    PUBLISHED,
    Published,
    Vocabulary,
    base_vocabulary,
    from_ranks,
    tokenizer_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

log = logging.getLogger(__name__)

MAGIC = 0x67676D6C
"""The first number of a file of whisper.cpp: `ggml`."""

OTHERS = {
    b"GGUF": "in the GGUF format of llama.cpp, which holds text models (`forescribe generate`)",
    b"\x06\x00\x00\x00": "the weights of CTranslate2: give their folder",
}
"""What a file is by its first bytes, where it is none of the two formats."""

MOST = 1 << 20
"""More layers, tokens or bytes of a name than this are a damaged file."""


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model, by OpenAI's names."""

    n_vocab: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int
    n_mels: int

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if not isinstance(size, int) or not 0 < size <= MOST:
                raise ValueError(f"it says {name} {size!r:.40}")
        if max(self.n_audio_layer, self.n_text_layer) > 1000:
            raise ValueError(f"it says {self.n_audio_layer} and {self.n_text_layer} layers")
        if self.n_audio_state != self.n_text_state:
            raise ValueError(
                f"its encoder has {self.n_audio_state} numbers for a position, its decoder "
                f"{self.n_text_state}; Whisper has as many in both"
            )

    def check_heads(self) -> None:
        """Raises ValueError for numbers of attention heads that Whisper cannot have: no tensor tells them."""
        heads = heads_of(self.n_audio_state)
        for name in ("n_audio_head", "n_text_head"):
            if getattr(self, name) != heads:
                raise ValueError(
                    f"it says {name} {getattr(self, name)}; Whisper's states of {self.n_audio_state} numbers "
                    f"have {heads} heads"
                )

    def tensors(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Each tensor's name in OpenAI's files, its name in transformers, and its shape."""
        width = self.n_audio_state

        def linear(
            there: str, here: str, rows: int = width, columns: int = width
        ) -> Iterator[tuple[str, str, tuple[int, ...]]]:
            yield f"{there}.weight", f"{here}.weight", (rows, columns)
            if not here.endswith("k_proj"):  # Whisper's keys have no bias
                yield f"{there}.bias", f"{here}.bias", (rows,)

        def norm(there: str, here: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
            for part in ("weight", "bias"):
                yield f"{there}.{part}", f"{here}.{part}", (width,)

        for conv, channels in (("conv1", self.n_mels), ("conv2", width)):
            name = f"encoder.{conv}"
            yield f"{name}.weight", f"model.{name}.weight", (width, channels, 3)
            yield f"{name}.bias", f"model.{name}.bias", (width,)
        embedding = "decoder.token_embedding.weight"
        yield embedding, "model.decoder.embed_tokens.weight", (self.n_vocab, width)
        for side, length, layers, last in (
            ("encoder", self.n_audio_ctx, self.n_audio_layer, "ln_post"),
            ("decoder", self.n_text_ctx, self.n_text_layer, "ln"),
        ):
            positions = f"model.{side}.embed_positions.weight"
            yield f"{side}.positional_embedding", positions, (length, width)
            yield from norm(f"{side}.{last}", f"model.{side}.layer_norm")
            for i in range(layers):
                there, here = f"{side}.blocks.{i}", f"model.{side}.layers.{i}"
                for theirs, ours in ATTENTIONS[: 1 if side == "encoder" else 2]:
                    yield from norm(f"{there}.{theirs}_ln", f"{here}.{ours}_layer_norm")
                    for part, projection in PROJECTIONS.items():
                        name = f"{here}.{ours}.{projection}_proj"
                        yield from linear(f"{there}.{theirs}.{part}", name)
                yield from norm(f"{there}.mlp_ln", f"{here}.final_layer_norm")
                yield from linear(f"{there}.mlp.0", f"{here}.fc1", 4 * width, width)
                yield from linear(f"{there}.mlp.2", f"{here}.fc2", width, 4 * width)

    @property
    def numbers(self) -> int:
        """How many numbers the weights are."""
        return sum(prod(shape) for _, _, shape in self.tensors())


ATTENTIONS = (("attn", "self_attn"), ("cross_attn", "encoder_attn"))
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "out"}
UNUSED = frozenset(
    {"decoder.mask", "alignment_heads", "proj_out.weight", "decoder.proj_out.weight"}
)
"""Tensors that some files hold besides: tables, and a copy of the embedding."""


def converted(file: Path, *, network: bool = True) -> Path:
    """The conversion of a file, made once, again where it has changed, or the tokenizer.json beside a `.pt`.
    `network` allows the download of the vocabulary that a `.pt` lacks.

    Raises ModelError for a file that is damaged, not complete, of another format or model than its name says;
    for a cache that cannot be written, see `convert_once`.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(4)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if head == MAGIC.to_bytes(4, "little"):
        return convert_once(Source(file, file.stem, "whisper.cpp"), partial(_read_ggml, file))
    if head in OTHERS:
        raise ModelError(f"{file} is {OTHERS[head]}")
    if head[:2] in (b"PK", b"\x80\x02"):  # torch's archive, and the pickle that preceded it
        source = Source(file, file.stem, "OpenAI", (file.with_name(BESIDE),))
        return convert_once(source, partial(_read_pt, file, head[:2], network=network))
    raise ModelError(
        f"{file} is no file of weights that can be read: neither whisper.cpp's (ggml-*.bin) nor "
        "openai-whisper's (.pt)"
    )


def published(file: Path) -> tuple[str, Published] | None:
    """The model of OpenAI's that a file's name says it is, with its name."""
    name = file.name.removeprefix("ggml-").removesuffix(file.suffix)
    name = name.rsplit("-q", 1)[0] if name.rsplit("-q", 1)[-1][:1].isdigit() else name
    found = PUBLISHED.get(name)
    return None if found is None else (name, found)


def _read_ggml(path: Path) -> Content:
    import torch

    known = published(path)
    sums = known[1].ggml_sha1 if known else {}
    stated = sums.get(path.stem.removeprefix(f"ggml-{known[0]}").lstrip("-")) if known else None
    if stated is not None and _digest(path, "sha1") != stated:
        # Not refused: all sizes are checked, and fine-tuned models are often kept under these names.
        log.warning("%s is not the file that whisper.cpp publishes under this name", path)
    file = MappedFile(path)
    dimensions = read_dimensions(file)
    dimensions.check_heads()
    _check_filters(file, dimensions)
    ranks = [
        file.take(file.count("i", LONGEST, "bytes of a token")).tobytes()
        for _ in range(file.count("i", dimensions.n_vocab, "tokens"))
    ]
    if ranks[-1:] == [b"<|endoftext|>"]:
        ranks.pop()  # of conversions of a vocab.json
    vocabulary = from_ranks(ranks)
    arrays = read_tensors(file, dimensions)
    state = {name: torch.from_numpy(values.copy()) for name, values in arrays.items()}
    return _content(state, dimensions, vocabulary, known)


def read_dimensions(file: MappedFile) -> Dimensions:
    """The dimensions in the head of a ggml file, which has been read up to the mel filters then. Raises
    ValueError."""
    if file.number("I") != MAGIC:
        raise ValueError("it does not begin with whisper.cpp's magic number")
    sizes = {field.name: file.number("i") for field in fields(Dimensions)}
    file.number("i")  # the number format of most tensors; each says its own
    return Dimensions(**sizes)


def _check_filters(file: MappedFile, dimensions: Dimensions) -> None:
    """Raises ModelError for a model that reads other mel bands than Whisper's feature extractor makes."""
    import numpy as np
    from transformers import WhisperFeatureExtractor

    bands, width = file.number("i"), file.number("i")
    if bands != dimensions.n_mels or not 0 < width <= MOST:
        raise ValueError(f"it has filters of {bands} mel bands of {width} frequencies")
    filters = file.take(4 * bands * width).view("<f4").reshape(bands, width)
    ours = WhisperFeatureExtractor(feature_size=bands).mel_filters.T
    if filters.shape != ours.shape or not np.allclose(filters, ours, atol=1e-5):
        raise ModelError("it has other mel filters than Whisper's")


def read_tensors(file: MappedFile, dimensions: Dimensions) -> dict[str, NDArray[Any]]:
    """The rest of a ggml file: weights by transformers' names, mapped from it unless they are quantised.

    Raises ValueError for a tensor that is missing, unknown, there twice or of another shape, and ModelError
    for a number format that cannot be read.
    """
    wanted = {name: (ours, shape) for name, ours, shape in dimensions.tensors()}
    state: dict[str, NDArray[Any]] = {}
    while not file.ended:
        ranks = file.count("i", 4, "dimensions of a tensor")
        length, kind = file.count("i", MOST, "bytes of a name"), file.number("i")
        shape = tuple(file.number("i") for _ in range(ranks))[::-1]
        name = file.take(length).tobytes().decode()
        if name not in wanted and name not in UNUSED:
            raise ValueError(
                f"it has the tensor {name[:80]!r}, which is not Whisper's, or there twice"
            )
        ours, expected = wanted.pop(name, ("", shape))
        if [size for size in shape if size != 1] != [size for size in expected if size != 1]:
            raise ValueError(f"{name} has the shape {list(shape)}, not {list(expected)}")
        values = _numbers(file, name, kind, shape)
        if ours:
            state[ours] = values.reshape(expected)
    if wanted:
        raise ValueError(f"it ends without {next(iter(wanted))}")
    return state


def _numbers(file: MappedFile, name: str, kind: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of the next tensor, float32 where they are quantised."""
    if kind in (0, 1):  # ggml's float32 and float16
        size = (4, 2)[kind]
        return file.take(size * prod(shape)).view(f"<f{size}")
    try:
        from gguf import GGMLQuantizationType
        from gguf.constants import GGML_QUANT_SIZES
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelError(
            f"its weights are quantised ({name}), which needs the package gguf: {how_to_install('gguf')}, "
            "or take the file in float16"
        ) from error
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ValueError:
        raise ModelError(f"{name} has ggml's number format {kind}, which cannot be read") from None
    if shape[-1] % block:
        raise ValueError(f"{name} has rows of {shape[-1]} numbers in blocks of {block}")
    packed = file.take(prod(shape) // block * size)
    try:
        values: NDArray[np.float32] = dequantize(packed, GGMLQuantizationType(kind))
    except NotImplementedError:
        kind_name = GGMLQuantizationType(kind).name
        raise ModelError(f"{name} is quantised as {kind_name}, which cannot be read") from None
    return values


def _read_pt(path: Path, head: bytes, *, network: bool) -> Content:
    import torch

    known = published(path)
    if known is not None and _digest(path, "sha256") != known[1].sha256:
        raise ModelError(
            f"it is not the {path.name} that OpenAI publishes (SHA-256 {known[1].sha256[:12]}...): it is "
            "damaged, or another model, which needs another name"
        )
    archive = zipfile.is_zipfile(path)
    if not archive and head == b"PK":
        raise ValueError("the list of its parts is missing, which is at the end")
    if archive and known is None:
        _check_parts(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise ModelError(
            "it is no file of openai-whisper, which holds `dims` and `model_state_dict`: weights of "
            "transformers need the folder that they are in"
        )
    dimensions = Dimensions(**content["dims"])
    dimensions.check_heads()
    weights: dict[str, Tensor] = content["model_state_dict"]
    state = {}
    for name, ours, shape in dimensions.tensors():
        tensor = weights[name]
        size = tensor.numel() * tensor.element_size()
        # A view that repeats its numbers claims a size that is not there.
        if tuple(tensor.shape) != shape or tensor.untyped_storage().nbytes() < size:
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"{name} holds {tensor.dtype}, which is no floating-point format")
        state[ours] = tensor.clone(memory_format=torch.contiguous_format)
    strange = weights.keys() - {name for name, _, _ in dimensions.tensors()} - UNUSED
    if strange:
        raise ValueError(f"it has the tensor {min(strange)[:80]!r}, which is not Whisper's")
    vocabulary, place = base_vocabulary(path, dimensions.n_vocab, network=network)
    read = () if place == path.with_name(BESIDE) else (place,)
    return _content(state, dimensions, vocabulary, known, read)


def _check_parts(path: Path) -> None:
    """Raises ValueError where a part of a torch archive differs from its checksum, which torch ignores."""
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("its parts are compressed, as torch never stores them")
        checked = any(
            part.CRC for part in archive.infolist()
        )  # torch can be told to leave them out
        different = archive.testzip() if checked else None
    if different is not None:
        raise ValueError(f"the checksum of its part {different!r:.80} is wrong")


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _content(
    state: Mapping[str, Tensor],
    dimensions: Dimensions,
    vocabulary: Vocabulary,
    known: tuple[str, Published] | None,
    read: tuple[Path, ...] = (),
) -> Content:
    tokenizer, ids = tokenizer_of(vocabulary, dimensions.n_vocab, dimensions.n_text_ctx)
    heads = known[1].alignment_heads if known else ()
    inside = all(
        layer < dimensions.n_text_layer and head < dimensions.n_text_head for layer, head in heads
    )
    settings = Settings(
        tokens=ids,
        suppress=vocabulary.suppressed(ids),
        begin_suppress=vocabulary.suppressed_at_begin(ids),
        alignment_heads=heads if heads and inside else None,
    )
    return Content(state, described(state, settings), tokenizer, read)
