"""Special tokens and prompts, for every vocabulary of the family. (That transformers forces the same
prompts is in test_equality.)"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.model.tokens import TASKS, SpecialTokens, language_code
from tests.asr.model import folders

TOKENIZER = folders.tokenizer()
IDS = TOKENIZER.get_vocab()


def generation(**changes: object) -> SimpleNamespace:
    config = {
        "no_timestamps_token_id": IDS["<|notimestamps|>"],
        "eos_token_id": IDS["<|endoftext|>"],
        "decoder_start_token_id": IDS["<|startoftranscript|>"],
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": IDS[f"<|{code}|>"] for code in folders.CODES},
        "task_to_id": {task: IDS[f"<|{task}|>"] for task in TASKS},
    }
    return SimpleNamespace(**{k: v for k, v in (config | changes).items() if v is not None})


MULTILINGUAL = SpecialTokens.of(generation(), TOKENIZER)
ENGLISH = SpecialTokens.of(
    generation(is_multilingual=False, lang_to_id=None, task_to_id=None), TOKENIZER
)


def names(prompt: tuple[int, ...]) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(list(prompt))


def test_the_ids_are_the_tokenizers() -> None:
    assert MULTILINGUAL.end == IDS["<|endoftext|>"]
    assert MULTILINGUAL.no_speech == IDS["<|nospeech|>"]
    assert MULTILINGUAL.timestamp_begin == IDS["<|0.00|>"]
    assert MULTILINGUAL.previous == IDS["<|startofprev|>"]
    assert MULTILINGUAL.languages == {code: IDS[f"<|{code}|>"] for code in folders.CODES}
    assert MULTILINGUAL.multilingual and not ENGLISH.multilingual


@pytest.mark.parametrize("task", TASKS)
def test_a_multilingual_prompt_names_language_and_task(task) -> None:
    prompt = MULTILINGUAL.prompt("de", task, timestamps=True)
    assert names(prompt) == ["<|startoftranscript|>", "<|de|>", f"<|{task}|>"]


@pytest.mark.parametrize("name", ["de", "DE", "german", "German", " GERMAN "])
def test_a_language_is_known_by_code_and_by_name_in_any_case(name) -> None:
    assert MULTILINGUAL.language(name) == language_code(name) == "de"


def test_an_unknown_language_lists_the_known() -> None:
    with pytest.raises(UsageError, match="'klingon'.*auto, de, en, fr"):
        MULTILINGUAL.language("klingon")
    with pytest.raises(UsageError, match="'spanish'"):  # Whisper's, but not this model's
        MULTILINGUAL.language("spanish")


def test_an_english_only_model_knows_english_alone() -> None:
    assert ENGLISH.language("English") == "en"
    with pytest.raises(UsageError, match="known: auto, en$"):
        ENGLISH.language("de")


def test_stamps_count_twenty_milliseconds() -> None:
    assert MULTILINGUAL.stamp(IDS["<|0.00|>"]) == 0
    assert MULTILINGUAL.stamp(IDS["<|0.02|>"]) == 320
    assert MULTILINGUAL.stamp(IDS["<|30.00|>"]) == 30 * 16_000
    assert MULTILINGUAL.stamp(IDS["<|notimestamps|>"]) is None
    assert MULTILINGUAL.stamp(70) is None


@pytest.mark.parametrize("missing", ["no_timestamps_token_id", "lang_to_id", "task_to_id"], ids=str)
def test_a_folder_that_lacks_a_part_is_refused_by_its_name(missing) -> None:
    with pytest.raises(ValueError, match=missing):
        SpecialTokens.of(generation(**{missing: None}), TOKENIZER)
