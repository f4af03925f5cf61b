"""Special tokens and prompts, for every vocabulary of the family. (That transformers forces the same
prompts is in test_equality.)"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.model.tokens import TASKS, SpecialTokens
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


def test_a_model_knows_the_languages_of_its_tokens() -> None:
    assert MULTILINGUAL.spoken("fr-CA, GERMAN").codes == ("fr", "de")
    with pytest.raises(UsageError, match="does not know Spanish"):  # which others know
        MULTILINGUAL.spoken("spanish")
    assert ENGLISH.spoken("English").one == "en"
    with pytest.raises(UsageError, match="knows English only"):
        ENGLISH.spoken("de")


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
