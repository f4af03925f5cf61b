"""large-v3's shapes and tokens: 128 mel bins, 51,866 tokens, `processor_config.json` alone.

Tokens are compared with transformers' `generate` of the same folder, in the same run: the windows of a
batch mix timestamps, plain text and previous text.
"""

from __future__ import annotations

import functools
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import WhisperForConditionalGeneration, WhisperTokenizer

from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.rules import WhisperRules, whisper_rules
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.requests import Request
from tests.asr.decode.test_equality import first_pass
from tests.asr.model import large_v3

WINDOWS, TOKENS = 16, 10
PREVIOUS = (64, 65, 66, 67, 68)
KINDS = tuple(product((True, False), ((), PREVIOUS)))  # timestamps, previous text
HEARD = (("en", "transcribe"), ("fr", "translate"), ("yue", "transcribe"))
BATCHES, GAMMAS, DRAFTS = (1, 3, 8, 16), (1, 5, 8, None), ("own encoder", "no encoder", "shared")
# Every value with every other of batch, drafts per round, draft and language: 16 of the 144.
PAIRS = [
    (batch, gamma, DRAFTS[(i + j) % 3], HEARD[(i + 2 * j) % 3])
    for i, batch in enumerate(BATCHES)
    for j, gamma in enumerate(GAMMAS)
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    large_v3.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory, tokens) -> Path:
    return large_v3.write_target(tmp_path_factory.mktemp("large") / "target", tokens)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, tokens, target) -> dict[str, Whisper]:
    folder = tmp_path_factory.mktemp("drafts")
    drafts = {
        "own encoder": large_v3.write_own_encoder(folder / "own", target, tokens),
        "no encoder": large_v3.write_no_encoder(folder / "bare", target, tokens),
        "shared": large_v3.write_shared_encoder(folder / "shared", target, tokens),
    }
    return {name: load(Pair(target, draft), choose("cpu")) for name, draft in drafts.items()}


@functools.cache
def features() -> torch.Tensor:
    return torch.randn(WINDOWS, 128, 3000, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def encoded(pairs):
    return {name: whisper.encode(features()) for name, whisper in pairs.items()}


def requests(whisper: Whisper, encoded, language: str, task: str, count: int) -> list[Request]:
    return [
        Request(
            whisper.tokens.prompt(
                language, task, timestamps=KINDS[i % 4][0], previous=KINDS[i % 4][1]
            ),
            encoder_states=encoded[i],
            max_new_tokens=TOKENS,
            tag=i,
        )
        for i in range(count)
    ]


def generated(folder: Path, language: str, task: str, count: int = WINDOWS) -> list[list[int]]:
    """What transformers writes for each window."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    known = WhisperTokenizer.from_pretrained(folder)
    found: dict[int, list[int]] = {}
    for kind, (timestamps, previous) in enumerate(KINDS):
        head = (known.convert_tokens_to_ids("<|startofprev|>"), *previous) if previous else ()
        rows = range(kind, count, len(KINDS))
        for row in rows:
            given = {"prompt_ids": torch.tensor(head)} if head else {}
            found[row] = first_pass(
                model,
                features()[row : row + 1],
                len(head) + (3 if timestamps else 4),
                return_timestamps=timestamps,
                language=language,
                task=task,
                max_new_tokens=TOKENS,
                **given,
            )
    return [found[row] for row in range(count)]


@pytest.fixture(scope="module")
def theirs(target):
    return functools.cache(functools.partial(generated, target))


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_tokens_equal_generate(case, pairs, encoded, theirs):
    batch, gamma, draft, (language, task) = case
    whisper = pairs[draft]
    made = Transcriber(whisper, batch=batch, gamma=gamma)
    count = min(WINDOWS, 2 * batch + 2)
    work = requests(whisper, encoded[draft], language, task, count)
    results = {result.request.tag: list(result.tokens) for result in made.engine.run(work)}
    expected = theirs(language, task)
    assert results == {row: expected[row] for row in range(count)}
    assert all(len(expected[row]) == TOKENS for row in range(count))


def test_drafts_are_kept_in_part(pairs, encoded):
    """Otherwise their rows would never have been of different lengths."""
    for name in DRAFTS:
        made = Transcriber(pairs[name], batch=8, gamma=5)
        list(made.engine.run(requests(pairs[name], encoded[name], "en", "transcribe", 8)))
        assert 0 < made.engine.stats.accepted < made.engine.stats.drafted, name


def test_the_folder_is_large_v3s(pairs):
    whisper = pairs["own encoder"]
    assert not whisper.shared_encoder and pairs["no encoder"].shared_encoder
    assert whisper.target.config.vocab_size == len(whisper.tokenizer) == 51866
    assert len(Transcriber(whisper, gamma=0).whisper.mel.filters) == 128
    special = whisper.tokens
    assert (special.start, special.end, special.no_timestamps) == (50258, 50257, 50364)
    assert (special.no_speech, special.previous, special.languages["yue"]) == (50363, 50362, 50358)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_folders_in_half_precision(tmp_path, tokens, dtype):
    """As float32 their tokens are those of `generate`; as they are stored, each token is the best there
    is but for rounding. Written in shards, as large checkpoints are."""
    folder = large_v3.write_target(tmp_path / "half", tokens, dtype, max_shard_size="1MB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    whisper = load(Pair(folder), choose("cpu", "float32"))
    assert whisper.target.dtype == torch.float32
    work = requests(whisper, whisper.encode(features()[:4]), "fr", "translate", 4)
    engine = Transcriber(whisper, batch=3, gamma=4).engine
    results = {result.request.tag: list(result.tokens) for result in engine.run(work)}
    expected = generated(folder, "fr", "translate", 4)
    assert results == {row: expected[row] for row in range(4)}

    stored = load(Pair(folder), choose("cpu", str(dtype).removeprefix("torch.")))
    # On a CPU without bfloat16 units its weights are rounded, and computed with in float32.
    assert (stored.device.stored, stored.target.dtype) == (dtype, stored.device.dtype)
    kept = load(Pair(folder), stored.device, engine=ModelEngine.LEAN)  # whose modules have weights
    encoded = stored.encode(features()[:4])
    work = [r for r in requests(stored, encoded, "fr", "translate", 4) if r.tag in (2, 3)]
    for result in Transcriber(stored, batch=3, gamma=4).engine.run(work):
        assert len(result.tokens) == TOKENS
        assert shortfall(kept, result, dtype) < 0.1


@torch.inference_mode()
def shortfall(whisper: Whisper, result, dtype: torch.dtype) -> float:
    """How far, in spreads of the logits, the tokens of a plain text are behind the best allowed."""
    prompt, text = result.request.prompt, result.tokens
    states = result.request.encoder_states.target[None]
    ids = torch.tensor([[*prompt, *text]])
    hidden = whisper.target.model.decoder(
        input_ids=ids, encoder_hidden_states=states, use_cache=False
    ).last_hidden_state
    logits = whisper.target.proj_out(hidden).float()[0, len(prompt) - 1 : -1]
    options = whisper.target.generation_config
    (rules,) = whisper_rules(options, whisper.target.config)
    assert isinstance(rules, WhisperRules)
    suppressed = rules.bias[0].isneginf() | (
        torch.arange(logits.shape[1]) >= options.no_timestamps_token_id
    )
    best = logits.masked_fill(suppressed, float("-inf"))
    best[0, options.begin_suppress_tokens] = float("-inf")
    chosen = logits.gather(1, torch.tensor(text)[:, None])[:, 0]
    return float(((best.amax(1) - chosen) / logits.std(1)).max())
