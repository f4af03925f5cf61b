"""Presets pair targets with drafts that fit; weights are found, fetched or refused by name."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from forescribe.asr.errors import ModelError, UsageError
from forescribe.asr.model.presets import (
    BUNDLED,
    MADE_FOR,
    PRESETS,
    Pair,
    beams_of,
    cached,
    check_request,
    locate,
    made_for,
    resolve,
)
from forescribe.speculative.models import hub
from forescribe.speculative.models.hub import find

LARGE_V3 = "openai/whisper-large-v3"
TINY = "openai/whisper-tiny"
DISTIL = "distil-whisper/distil-large-v3.5"


@pytest.fixture(autouse=True)
def bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A bundled pair and an empty hub cache of our own, whatever this machine has."""
    folder = tmp_path / "bundled"
    for name in (BUNDLED, f"{BUNDLED}-draft"):
        _weights(folder / name)
    monkeypatch.setattr("forescribe.speculative.models.hub.FOLDER", folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return folder


def _weights(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def _in_cache(name: str) -> Path:
    """Puts an empty model into the hub's cache, laid out as its client does."""
    repository = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return _weights(repository / "snapshots" / ("0" * 40))


# Which pair a name means


def test_the_default_is_large_v3_with_its_english_draft() -> None:
    expected = Pair(LARGE_V3, DISTIL, frozenset({"en"}), TINY)
    assert resolve(None, None) == resolve("large", None) == resolve(LARGE_V3, None) == expected


def test_the_bundled_pair_is_a_target_only_where_it_is_named(bundled: Path) -> None:
    target, draft, english = bundled / BUNDLED, bundled / f"{BUNDLED}-draft", frozenset({"en"})
    for name in (BUNDLED, "demo"):
        assert resolve(name, None) == Pair(target)
        assert resolve(name, None, None, 1) == Pair(target, draft, english)
    assert resolve(BUNDLED, "none") == Pair(target)
    for name in PRESETS.keys() - {BUNDLED}:
        assert isinstance(resolve(name, None).target, str)


def test_bundled_models_draft_for_others(bundled: Path) -> None:
    """The target for larger ones without a download; the draft for its published weights."""
    target, draft, english = bundled / BUNDLED, bundled / f"{BUNDLED}-draft", frozenset({"en"})
    assert resolve("small.en", None, None, 1) == Pair("openai/whisper-small.en", target, english)
    assert resolve("base", "tiny.en") == Pair("openai/whisper-base", target, english)
    published = "openai/whisper-tiny.en"
    assert resolve(published, None, None, 1) == Pair(published)
    assert resolve(published, f"{BUNDLED}-draft") == Pair(published, draft, english)


@pytest.mark.parametrize(
    ("model", "language", "draft"),
    [
        ("large", "en", DISTIL),
        ("large", "fr", "bofenghuang/whisper-large-v3-distil-fr-v0.2"),
        ("large", "ja", "kotoba-tech/kotoba-whisper-v2.0"),
        ("large", "de", TINY),
        ("large-v2", "en", "distil-whisper/distil-large-v2"),
        ("large-v2", "de", TINY),
        ("turbo", "en", TINY),
        ("tiny", "en", None),
    ],
)
def test_the_draft_follows_the_language(model: str, language: str, draft: str | None) -> None:
    assert resolve(model, None, language).draft == draft


def test_any_folder_and_any_hub_id_may_be_target_or_draft(tmp_path: Path) -> None:
    folder = _weights(tmp_path / "mine")
    assert resolve(str(folder), None) == Pair(folder)
    assert resolve("somebody/model", "somebody/draft") == Pair("somebody/model", "somebody/draft")
    assert resolve("large", str(folder)) == Pair(LARGE_V3, folder)


def test_targets_are_known_by_the_name_that_other_programs_use() -> None:
    assert resolve("large-v3-turbo", None) == resolve("turbo", None)


def test_a_draft_may_be_named_as_a_preset_and_keeps_its_languages() -> None:
    assert resolve("large", "distil-large-v3") == Pair(
        LARGE_V3, "distil-whisper/distil-large-v3", frozenset({"en"})
    )
    assert resolve("large", "turbo") == Pair(LARGE_V3, "openai/whisper-large-v3-turbo")
    assert resolve("large", "none") == Pair(LARGE_V3)


@pytest.mark.parametrize(
    ("model", "draft", "told"),
    [
        ("lagre", None, "--model lagre is neither .*; did you mean large\\?$"),
        ("large", "best", "--draft best is neither .*: large, .*large-v2"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_or_all(model, draft, told) -> None:
    with pytest.raises(ModelError, match=told):
        resolve(model, draft)


def test_every_preset_names_drafts_with_the_languages_that_they_were_made_for() -> None:
    for preset in PRESETS.values():
        for draft in preset.drafts:
            name = draft.name.removesuffix("-draft")
            assert draft.languages == MADE_FOR.get(name), draft


@pytest.mark.parametrize("name", ["large", "large-v3", "large-v2", "large-v1", "turbo", "medium"])
def test_multilingual_presets_have_a_draft_for_every_language(name: str) -> None:
    for language in ("en", "fr", "ja", "yue", "cy"):
        (draft,) = PRESETS[name].drafts_for(language)
        assert draft.languages is None or language in draft.languages
    unknown = PRESETS[name].drafts_for(None)
    assert unknown[0] == PRESETS[name].drafts[0] and unknown[-1].languages is None
    assert len(unknown) == (1 if unknown[0].languages is None else 2)


def test_a_pair_routes_each_language_to_one_of_its_drafts() -> None:
    both = resolve("large", None)
    assert both == Pair(LARGE_V3, DISTIL, frozenset({"en"}), TINY)
    assert both.drafts == (DISTIL, TINY)
    assert [both.route(language) for language in ("en", "fr", "yue")] == [0, 1, 1]
    english = resolve("large", DISTIL)
    assert english.drafts == (DISTIL,)
    assert [english.route(language) for language in ("en", "fr")] == [0, None]
    assert [resolve("turbo", None).route(language) for language in ("en", "fr")] == [0, 0]
    assert resolve("large", "none").drafts == ()


# With how many beams its windows are searched

WIDTHS = {
    "large": 1280,
    "large-v3": 1280,
    "large-v2": 1280,
    "large-v1": 1280,
    "medium": 1024,
    "medium.en": 1024,
    "small": 768,
    "small.en": 768,
    "base": 512,
    "base.en": 512,
    "tiny": 384,
    "tiny.en": 384,
    "turbo": 1280,
    "distil-large-v3.5": 1280,
    "distil-large-v3": 1280,
    "distil-large-v2": 1280,
    "distil-medium.en": 1024,
    "distil-small.en": 768,
}
"""The published `d_model` of every Whisper preset."""

LLMS = {
    "qwen3-asr": "qwen3_asr",
    "qwen3-asr-0.6b": "qwen3_asr",
    "voxtral-mini": "voxtral",
    "granite-speech": "granite_speech",
}
"""What the config.json of the others says."""


def _stating(folder: Path, generation: dict[str, object] | None = None, **config: object) -> Path:
    """A folder whose config.json and generation_config.json say this."""
    _weights(folder)
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_beams_of_a_folder_with_its_weights(name: str, tmp_path: Path) -> None:
    """So that a copy of a published model is searched as the model itself is."""
    preset = PRESETS[name]
    if name in LLMS:
        stated = {"model_type": LLMS[name], "d_model": 384}
        expected = 1
    else:
        stated = {"model_type": "whisper", "d_model": WIDTHS[name]}
        expected = 5 if WIDTHS[name] <= 768 else 1
    folder = _stating(tmp_path / "copy", **stated)
    assert preset.beams == beams_of(resolve(name, "none").target) == expected
    assert beams_of(folder, folder) == expected


def test_a_folder_says_with_how_many_beams_it_is_searched(tmp_path: Path) -> None:
    """As `num_beams`, whatever its width; what is no number of beams says nothing."""
    for number, width in ((1, 384), (5, 1280), (3, 384)):
        folder = _stating(tmp_path / f"{number}", {"num_beams": number}, d_model=width)
        assert beams_of(folder, folder) == number
    for number, said in enumerate(("many", None, 0)):
        folder = _stating(tmp_path / f"none{number}", {"num_beams": said}, d_model=512)
        assert beams_of(folder, folder) == 5


def test_a_preset_is_searched_as_it_says_whatever_its_folder_says(tmp_path: Path) -> None:
    folder = _stating(tmp_path / "large", {"num_beams": 3}, d_model=384)
    assert beams_of(LARGE_V3, folder) == 1


def test_the_beams_of_an_unknown_or_unreadable_folder_are_unknown(tmp_path: Path) -> None:
    folder = _weights(tmp_path / "mine")
    (folder / "config.json").write_text("{")
    assert beams_of(folder, folder) is None
    assert beams_of("somebody/model") is None
    assert beams_of(tmp_path / "gone", tmp_path / "gone") is None


SEARCHED = [name for name, preset in PRESETS.items() if preset.beams > 1]


@pytest.mark.parametrize("name", SEARCHED)
def test_a_preset_that_is_searched_with_beams_has_no_draft_unless_one_is_used(name: str) -> None:
    """It would be loaded, and downloaded, for nothing."""
    target, drafted = resolve(name, "none").target, bool(PRESETS[name].drafts)
    for beams in (None, 2, 5):
        assert resolve(name, None, None, beams) == Pair(target)
    for one in (1, "auto"):
        assert (resolve(name, None, None, one).draft is not None) == drafted
    for beams in (None, 1, 5, "auto"):
        assert resolve(name, DISTIL, None, beams).draft == DISTIL
        assert resolve(name, "none", None, beams) == Pair(target)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in SEARCHED])
def test_a_preset_of_one_beam_keeps_its_draft_until_beams_are_asked_for(name: str) -> None:
    drafted = resolve(name, None)
    assert bool(drafted.drafts) == bool(PRESETS[name].drafts)
    for one in (1, "auto"):
        assert resolve(name, None, None, one) == drafted
    assert resolve(name, None, None, 5) == Pair(drafted.target)


# Where the weights are


def test_weights_are_found_in_a_folder_and_in_the_cache(tmp_path: Path) -> None:
    folder = _weights(tmp_path / "mine")
    assert locate(str(folder)) == locate(folder) == folder
    snapshot = _in_cache("somebody/model")
    assert locate("somebody/model", network=False) == snapshot


def test_a_half_finished_download_does_not_count(tmp_path: Path) -> None:
    snapshot = _in_cache("somebody/model")
    (snapshot / "model.safetensors").unlink()
    assert find("somebody/model") is None
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert find("somebody/model") is None
    (snapshot / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert find("somebody/model") == snapshot


def test_a_missing_model_names_itself_how_to_fetch_it_and_what_is_bundled() -> None:
    with pytest.raises(ModelError) as caught:
        locate(LARGE_V3, network=False)
    assert caught.value.code == "model_not_found"
    for part in (LARGE_V3, f"hf download {LARGE_V3}", "local folder to --model", "--model tiny.en"):
        assert part in caught.value.message
    with pytest.raises(ModelError, match="--draft none"):
        locate(DISTIL, role="draft", network=False)


def test_without_a_network_the_error_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client meets a closed port, as it does on a machine without a network."""
    endpoint = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    started = time.monotonic()
    with pytest.raises(ModelError, match="the hub cannot be reached: run `hf download"):
        locate(LARGE_V3)
    assert time.monotonic() - started < 10


def test_what_the_hub_lacks_in_safetensors_is_taken_in_the_old_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def download(name: str, **options: object) -> str:
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("not cached")
        patterns = options["allow_patterns"]
        assert isinstance(patterns, list)
        asked.extend(patterns)
        folder = tmp_path / "snapshot"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        if "pytorch_model.bin" in patterns:
            (folder / "pytorch_model.bin").write_bytes(b"")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("somebody/model") == tmp_path / "snapshot"
    assert asked.index("model.safetensors") < asked.index("pytorch_model.bin")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("peer closed the connection"), "peer closed the connection"),
    ],
)
def test_a_broken_download_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def download(name: str, **options: object) -> str:
        raise LocalEntryNotFoundError("not cached") if options.get("local_files_only") else error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match=f"the download failed .*{message}"):
        locate("somebody/model")


WEIGHTS = bytes(range(256)) * 40


class BreakingHub(BaseHTTPRequestHandler):
    """A hub whose first answers break off or fail; it keeps the ranges that it is asked for."""

    answers: ClassVar[list[str]] = []
    ranges: ClassVar[list[str | None]] = []

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            lfs = {"size": len(WEIGHTS), "sha256": sha256(WEIGHTS).hexdigest(), "pointerSize": 1}
            file = {"rfilename": "model.safetensors", "size": len(WEIGHTS), "lfs": lfs}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                json.dumps({"id": "a/b", "sha": "0" * 40, "siblings": [file]}).encode()
            )
            return
        if self.answers == ["gated"]:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        asked = self.headers["Range"]
        self.ranges.append(asked)
        how = self.answers.pop(0) if self.answers else "whole"
        begin = int(asked.removeprefix("bytes=")[:-1]) if asked else 0
        self.send_response(500 if how == "fails" else 206 if asked else 200)
        self.send_header("Content-Length", str(0 if how == "fails" else len(WEIGHTS) - begin))
        self.end_headers()
        if how != "fails":
            self.wfile.write(WEIGHTS[begin:][: 4500 if how == "breaks" else None])


def test_a_download_that_breaks_off_is_continued_and_checked(
    monkeypatch: pytest.MonkeyPatch, bundled: Path
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BreakingHub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time", Mock())  # it waits between two tries
    monkeypatch.setattr(hub, "LARGE", 1)
    monkeypatch.setattr(BreakingHub, "answers", ["breaks", "fails"])
    monkeypatch.setattr(BreakingHub, "ranges", ranges := [])
    blobs = Path(constants.HF_HUB_CACHE, "models--a--b", "blobs")
    try:
        with pytest.raises(ModelError, match=r"0 of 0 MB of model\.safetensors; the same command"):
            locate("a/b")
        (part,) = blobs.iterdir()
        kept = part.read_bytes()
        assert kept == WEIGHTS[:4000] and ranges == [None, "bytes=4000-"]

        part.write_bytes(b"x" + kept[1:])
        with pytest.raises(ModelError, match="arrived damaged and was deleted"):
            locate("a/b")
        assert part.read_bytes() == b""

        monkeypatch.setattr(BreakingHub, "answers", ["gated"])
        with pytest.raises(
            ModelError, match="asks you to accept its terms first; then set HF_TOKEN"
        ):
            locate("a/b")
        BreakingHub.answers.clear()

        part.write_bytes(WEIGHTS + b"x")  # longer than the file: begun anew
        hub._continue("a/b", ["*.safetensors"])
        (whole,) = blobs.iterdir()
        assert whole.read_bytes() == WEIGHTS and ranges[-1] is None

        whole.unlink()
        part.write_bytes(kept)
        hub._continue("a/b", ["*.safetensors"])
        (whole,) = blobs.iterdir()
        assert whole.name == sha256(WEIGHTS).hexdigest() and whole.read_bytes() == WEIGHTS
        assert ranges[-1] == "bytes=4000-"
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        locate(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights"):
        locate(str(tmp_path))
    with pytest.raises(ModelError, match="neither a local folder"):
        locate("./no/such/folder")


def test_cached_tells_target_and_draft_apart_without_a_network() -> None:
    _in_cache(LARGE_V3)
    state = {entry.preset.name: entry for entry in cached()}
    assert (state["large"].target, state["large"].draft) == (True, False)
    assert (state[BUNDLED].target, state[BUNDLED].draft) == (True, None)  # beams draft nothing
    assert (state["turbo"].target, state["turbo"].draft) == (False, False)
    assert (state["tiny"].target, state["tiny"].draft) == (False, None)
    assert list(state) == list(PRESETS)


@pytest.mark.parametrize(
    ("model", "languages"),
    [
        ("demo", {"en"}),
        ("distil-large-v3.5", {"en"}),
        ("distil-whisper/distil-large-v3.5", {"en"}),
        ("small.en", {"en"}),
        ("kotoba-tech/kotoba-whisper-v2.0", {"ja"}),
        ("large", None),
        ("turbo", None),
    ],
)
def test_what_a_model_was_made_for_is_known_before_it_is_loaded(model, languages) -> None:
    assert made_for(resolve(model, None).target) == languages


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("tiny.en", "tiny.en knows English only; use tiny"),
        ("demo", "tiny.en knows English only; use tiny"),
        ("openai/whisper-base.en", "base.en knows English only; use base"),
        ("distil-large-v3", "distil-large-v3 knows English only; use large-v3"),
        ("distil-small.en", "distil-small.en knows English only; use small"),
        (
            "kotoba-tech/kotoba-whisper-v2.0",
            "kotoba-tech/kotoba-whisper-v2.0 knows Japanese only; use large",
        ),
    ],
)
def test_a_model_of_one_language_names_itself_and_one_for_all(model, told) -> None:
    target = resolve(model, None).target
    for language, task in (("de", "transcribe"), (None, "translate")):
        with pytest.raises(UsageError) as refused:
            check_request(target, language, task)
        assert refused.value.message.endswith(told)
    check_request(resolve("large", None).target, "de", "translate")
