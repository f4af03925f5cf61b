"""Maps between the vocabularies of Whisper models, from tokenizers and configurations of both kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, WhisperConfig, WhisperTokenizer

from forescribe.asr.model.tokens import TokenSettings
from forescribe.asr.model.vocabulary import Kind, Token, WhisperVocabulary, token_map
from forescribe.speculative.models.vocabularies import NONE

from . import large_v3, mapped_pairs
from .mapped_pairs import OLDER, V3, YUE

STAMPS = 1501


def vocabulary(folder: Any) -> WhisperVocabulary:
    settings = TokenSettings.of(
        WhisperConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    )
    return WhisperVocabulary.of(settings, WhisperTokenizer.from_pretrained(folder))


@pytest.fixture(
    scope="module", params=["made up", pytest.param("published", marks=pytest.mark.data)]
)
def both(request, tmp_path_factory) -> tuple[WhisperVocabulary, WhisperVocabulary]:
    """large-v3's vocabulary, and that of an older multilingual Whisper."""
    if request.param == "published":
        newer, older = map(mapped_pairs.published, (V3, OLDER))
        return vocabulary(newer), vocabulary(older)
    newer, older = (tmp_path_factory.mktemp(name) for name in ("newer", "older"))
    mapped_pairs.newer_files(newer)
    mapped_pairs.older_files(older)
    large_v3.config(1).save_pretrained(newer)
    made = large_v3.config(1)
    made.vocab_size -= 1
    made.save_pretrained(older)
    return vocabulary(newer), vocabulary(older)


def test_an_older_tokenizers_timestamps_are_the_positions_behind_its_last_token(both) -> None:
    newer, older = both
    assert (len(newer.tokens), len(older.tokens)) == (51866, 51865)
    for each, first in ((newer, 50365), (older, 50364)):
        assert each.stamps == tuple(range(first, first + STAMPS))
        assert each.ids.get(Token(Kind.TIMESTAMP, "<|30.00|>")) == len(each.tokens) - 1
        assert (
            each.ids.get(Token(Kind.CONTROL, "<|nospeech|>")) == first - 2
        )  # <|nocaptions|> there
        assert each.text_count == large_v3.TEXT and not each.english_only


def test_an_older_draft_reads_and_writes_every_token_of_large_v3(both) -> None:
    """The whole table: texts, specials, languages and timestamps."""
    ids = token_map(*both)
    assert ids is not None
    for target in range(51866):
        if target == YUE:
            continue
        own = target if target < YUE else target - 1
        assert ids.to_draft[target] == own and ids.to_target[own] == target
    newer, older = both
    assert ids.to_draft[YUE] == older.ids.get(Token(Kind.LANGUAGE, "<|zh|>")) == 50260
    assert YUE not in ids.to_target and NONE not in ids.to_target
    for kind in (Kind.CONTROL, Kind.LANGUAGE, Kind.TIMESTAMP):
        mine = [i for i, token in enumerate(newer.tokens) if token.kind is kind and i != YUE]
        assert [older.tokens[ids.to_draft[i]] for i in mine] == [newer.tokens[i] for i in mine]
    languages = [t for t in newer.tokens if t.kind is Kind.LANGUAGE]
    assert (len(languages), len(newer.stamps)) == (100, STAMPS)


def test_large_v3_drafts_for_an_older_whisper_without_cantonese(both) -> None:
    ids = token_map(both[1], both[0])
    assert ids is not None
    assert [i for i, target in enumerate(ids.to_target) if target == NONE] == [YUE]
    assert ids.proposed(None) == tuple(i for i in range(51866) if i != YUE)
    assert all(ids.to_target[own] == target for target, own in enumerate(ids.to_draft))


@dataclass
class Names:
    """A tokenizer as far as the map reads it."""

    names: list[str]
    added: dict[int, bool] = field(default_factory=dict)  # id: whether it is special

    def get_vocab(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {i: SimpleNamespace(special=special) for i, special in self.added.items()}


LETTERS = ["Ġ", *"abcdefgh"]


def small(
    text: list[str], specials: list[str], *, more: int = 0, **settings: Any
) -> WhisperVocabulary:
    """`text`, end-of-text, start, `specials`; `more` ids without a name."""
    names = [*text, "<|endoftext|>", "<|startoftranscript|>", *specials]
    size = len(names) + more
    config: Any = SimpleNamespace(
        vocab_size=size, eos_token_id=len(text), max_source_positions=2, num_mel_bins=80
    )
    added = settings.pop("added", {})
    chosen = GenerationConfig()
    chosen._from_model_config = False
    for name, value in settings.items():
        setattr(chosen, name, value)
    return WhisperVocabulary.of(TokenSettings.of(config, chosen), Names(names, added))


PROMPT = ["<|en|>", "<|zh|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]


def test_tokens_that_a_fine_tune_added_are_not_drafted_although_their_ids_exist() -> None:
    """An id of both is another token in each: an added word there, a timestamp here."""
    target = small(LETTERS, PROMPT, more=3)
    tuned = small(LETTERS, [*PROMPT, "tax", "<|speaker|>"], more=3, added={16: False, 17: True})
    assert [token.name for token in target.tokens[16:]] == ["<|0.00|>", "<|0.02|>", "<|0.04|>"]
    assert tuned.tokens[16:18] == (Token(Kind.TEXT, "tax"), Token(Kind.OTHER, "<|speaker|>"))
    ids = token_map(target, tuned)
    assert ids is not None
    assert ids.to_target[16] == ids.to_target[17] == NONE
    assert ids.partners[:16] == tuple(range(16))
    back = token_map(tuned, target)
    assert back is not None
    # Read by the longest end that is a token, and by a space.
    long = small([*LETTERS, "ax"], PROMPT, more=3)
    read = token_map(tuned, long)
    assert read is not None and read.to_draft[16] == len(LETTERS)
    assert read.to_draft[17] == 0


def test_a_word_that_two_fine_tunes_added_under_other_ids_is_drafted() -> None:
    first = small(LETTERS, [*PROMPT, "tax", "vat"], added={16: False, 17: False})
    second = small(LETTERS, [*PROMPT, "vat", "duty"], added={16: False, 17: False})
    ids = token_map(first, second)
    assert ids is not None
    assert ids.to_target[16] == 17 and ids.to_target[17] == NONE
    assert ids.to_draft[16] == 0  # `tax`: no end of it is a token, so the space


def test_tokens_with_one_id_and_another_text_are_not_mapped_by_id() -> None:
    target = small([*LETTERS, "ab", "cd"], PROMPT)
    draft = small([*LETTERS, "cd", "ef"], PROMPT)
    ids = token_map(target, draft)
    assert ids is not None
    assert ids.to_draft[10] == 9 and ids.to_target[9] == 10
    assert ids.to_target[10] == NONE
    assert ids.to_draft[9] == LETTERS.index("b")  # the longest end of `ab` that the draft has


def test_an_english_only_draft_reads_languages_and_tasks_as_the_start() -> None:
    target = small(LETTERS, PROMPT, more=3)
    english = small(LETTERS, PROMPT, more=3, is_multilingual=False)
    start = len(LETTERS) + 1
    ids = token_map(target, english)
    assert ids is not None
    assert [ids.to_draft[i] for i in range(11, 16)] == [start, start, start, start, 15]
    assert all(ids.to_target[i] == NONE for i in range(11, 15))
    assert ids.to_target[15] == 15 and ids.to_target[start] == start
    assert token_map(english, target) is None  # the same ids, which it does not use


@pytest.mark.parametrize(
    ("language", "has", "read"),
    [
        ("<|yue|>", ["<|en|>", "<|zh|>"], "<|zh|>"),
        ("<|yue|>", ["<|en|>", "<|de|>"], "<|startoftranscript|>"),
        ("<|nn|>", ["<|no|>", "<|en|>"], "<|no|>"),
        ("<|jv|>", ["<|en|>", "<|jw|>"], "<|jw|>"),  # two codes of one language
        ("<|cy|>", ["<|en|>", "<|fr|>"], "<|startoftranscript|>"),
    ],
)
def test_a_language_that_a_draft_lacks_is_read_as_a_related_one(language, has, read) -> None:
    target = small(LETTERS, [language, "<|en|>", "<|notimestamps|>"])
    draft = small(LETTERS, [*has, "<|notimestamps|>"])
    ids = token_map(target, draft)
    assert ids is not None
    got = draft.tokens[ids.to_draft[len(LETTERS) + 2]].name
    assert got == read


def test_timestamps_behind_the_drafts_last_one_are_read_as_that() -> None:
    """A fine-tune may have fewer of them."""
    stamps = ["<|0.00|>", "<|0.02|>", "<|0.04|>"]
    target = small(LETTERS, ["<|en|>", "<|notimestamps|>", *stamps])
    draft = small(LETTERS, ["<|notimestamps|>", *stamps[:2]])
    ids = token_map(target, draft)
    assert ids is not None
    last = draft.ids.get(Token(Kind.TIMESTAMP, "<|0.02|>"))
    assert ids.to_draft[-2:] == (last, last)
    assert last is not None and ids.to_target[last] == len(target.tokens) - 2


def test_vocabularies_with_little_in_common_are_refused_by_the_count() -> None:
    target = small(LETTERS, PROMPT)
    draft = small(["Ġ", "a", *"ijklmno"], PROMPT)
    with pytest.raises(ValueError, match="they share 2 of 9 text tokens"):
        token_map(target, draft)


words = st.lists(st.text("abcdefgh", min_size=2, max_size=4), unique=True, max_size=6)


@given(words, words, st.permutations(PROMPT[:-1]), st.permutations(PROMPT[:-1]), st.integers(0, 4))
def test_partners_mean_the_same_and_every_token_can_be_read(ours, theirs, a, b, more) -> None:
    target = small([*LETTERS, *ours], [*a, PROMPT[-1]], more=3)
    draft = small([*theirs, *LETTERS], [*b[:-1], PROMPT[-1]], more=3 + more)
    ids = token_map(target, draft)
    assert ids is not None or target == draft
    for own, found in enumerate(() if ids is None else ids.to_target):
        if found != NONE:
            assert draft.tokens[own] == target.tokens[found] and target.tokens[found].name
    for i, token in enumerate(() if ids is None else target.tokens):
        assert ids is not None
        read = draft.tokens[ids.to_draft[i]]
        if token in draft.ids:
            assert read == token
        elif token.kind is Kind.TEXT:
            assert read.kind is Kind.TEXT and (token.name or "").endswith(read.name or "?")
        else:
            assert read.kind in (Kind.CONTROL, Kind.LANGUAGE, Kind.TEXT)
