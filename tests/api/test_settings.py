"""Settings: one source wins over another, and a wrong one is named."""

from __future__ import annotations

import pickle

import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.settings import load
from forescribe.asr.errors import UsageError


@pytest.fixture(autouse=True)
def clean(monkeypatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("FORESCRIBE_"):
            monkeypatch.delenv(name)


def test_the_command_wins_over_the_environment_and_that_over_the_file(
    tmp_path, monkeypatch
) -> None:
    file = tmp_path / "service.toml"
    file.write_text('model = "tiny"\nport = 1\nbatch_size = 3\n')
    monkeypatch.setenv("FORESCRIBE_MODEL", "small")
    monkeypatch.setenv("FORESCRIBE_PORT", "2")
    made = load(file, model="tiny.en", draft=None)
    assert (made.model, made.port, made.batch_size, made.draft) == ("tiny.en", 2, 3, None)
    assert made.model_name == "tiny.en"
    assert pickle.loads(pickle.dumps(made)) == made  # workers get them so


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ('port = "many"', "port"),
        ("max_audio_s = 0", "max_audio_s"),
        ('[api_keys]\nteam = "secret"', "team"),
        ("port = ", "settings cannot be read"),
        ("prot = 1", "^prot is not a setting; did you mean port[?]$"),
        ("qqqq = 1", "^qqqq is not a setting; docs/reference/settings.md lists them$"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_in_one_line(tmp_path, text, culprit) -> None:
    file = tmp_path / "service.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=culprit) as caught:
        load(file)
    assert "\n" not in caught.value.message


def test_a_name_that_nobody_knows_is_not_ignored(monkeypatch) -> None:
    monkeypatch.setenv("FORESCRIBE_MAX_AUDIO", "5")
    with pytest.raises(UsageError, match="did you mean FORESCRIBE_MAX_AUDIO_S[?]$"):
        load()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_needs_no_keys(host) -> None:
    assert load(host=host).api_keys == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "asr.example"])
def test_others_are_let_in_with_keys_or_on_purpose(host) -> None:
    with pytest.raises(UsageError, match="forescribe key"):
        load(host=host)
    assert load(host=host, api_keys={"team": digest(new_key())}).host == host
    assert load(host=host, open_to_all=True).host == host
