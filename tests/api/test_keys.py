"""Keys: several, hashed, and nobody else's."""

from __future__ import annotations

import hmac

import pytest

from api import keys
from api.keys import Keyring, digest, new_key


def test_a_key_belongs_to_whom_it_was_made_for() -> None:
    made = {name: new_key() for name in ("one", "two")}
    ring = Keyring({name: digest(key) for name, key in made.items()})
    assert {name: ring.owner(key) for name, key in made.items()} == {"one": "one", "two": "two"}
    for other in ("", "fs-", new_key(), digest(made["one"]), made["one"][:-1]):
        assert ring.owner(other) is None


def test_keys_are_long_and_none_comes_twice() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100 and min(map(len, made)) > 40


def test_every_digest_is_compared_whoever_asks(monkeypatch) -> None:
    """The time tells neither whether a key is known nor where it stands."""
    compared = []
    monkeypatch.setattr(
        keys.hmac,
        "compare_digest",
        lambda a, b: compared.append(a) or hmac.digest is None or a == b,
    )
    first, second = new_key(), new_key()
    ring = Keyring({"first": digest(first), "second": digest(second)})
    for key in (first, second, new_key()):
        compared.clear()
        ring.owner(key)
        assert len(compared) == 2


@pytest.mark.parametrize("value", ["", "secret", "ab", "0" * 63, "0" * 66])
def test_what_is_no_hash_is_refused_by_name(value) -> None:
    with pytest.raises(ValueError, match="'team'"):
        Keyring({"team": value})
