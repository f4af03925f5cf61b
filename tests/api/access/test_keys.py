"""Keys: several are accepted, only hashes are stored, and all others are refused."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime

import pytest

from forescribe.api.access import keys
from forescribe.api.access.keys import Keyring, Rights, digest, new_key


def ring_of(**keys: str) -> Keyring:
    return Keyring({name: Rights.model_validate(digest(key)) for name, key in keys.items()})


def test_a_key_belongs_to_whom_it_was_made_for() -> None:
    made = {name: new_key() for name in ("one", "two")}
    ring = ring_of(**made)
    assert {name: ring.owner(key) for name, key in made.items()} == {"one": "one", "two": "two"}
    for other in ("", "fs-", new_key(), digest(made["one"]), made["one"][:-1]):
        assert ring.owner(other) is None


def test_keys_are_long_and_none_comes_twice() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100 and min(map(len, made)) > 40


def test_a_key_may_have_two_hashes_while_one_replaces_the_other() -> None:
    old, new = new_key(), new_key()
    ring = Keyring({"team": Rights(hashes=(digest(old), digest(new).upper()))})
    assert ring.owner(old) == ring.owner(new) == "team"


@pytest.mark.parametrize(
    ("expires", "over"),
    [
        (None, False),
        ("2026-06-01", False),  # to the end of that day
        ("2026-05-31", True),
        ("2026-06-01T12:00:00Z", True),
        ("2026-06-01T12:00:01Z", False),
        ("2026-06-01T13:30:00+02:00", True),
    ],
)
def test_a_key_expires(expires, over) -> None:
    rights = Rights(hashes=("0" * 64,), expires=expires)
    assert rights.expired(datetime(2026, 6, 1, 12, tzinfo=UTC)) is over


def test_every_digest_is_compared_whoever_asks(monkeypatch) -> None:
    """The time tells neither whether a key is known nor where it stands."""
    compared = []
    monkeypatch.setattr(
        keys.hmac,
        "compare_digest",
        lambda a, b: compared.append(a) or hmac.digest is None or a == b,
    )
    first, second = new_key(), new_key()
    ring = ring_of(first=first, second=second)
    for key in (first, second, new_key()):
        compared.clear()
        ring.owner(key)
        assert len(compared) == 2


@pytest.mark.parametrize("value", ["", "secret", "ab", "0" * 63, "0" * 66])
def test_what_is_no_hash_is_refused(value) -> None:
    with pytest.raises(ValueError, match="forescribe key"):
        Rights.model_validate(value)
