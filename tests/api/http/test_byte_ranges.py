"""Range headers: served, ignored or refused."""

from __future__ import annotations

import pytest

from forescribe.api.errors import ApiError
from forescribe.api.http.bodies import is_served


@pytest.mark.parametrize(
    "header", ["bytes=0-", "bytes=0-9", "bytes=99-", "bytes=-5", "Bytes = 3-3"]
)
def test_a_range_inside_the_file_is_served(header) -> None:
    assert is_served(header, 100)


@pytest.mark.parametrize("header", [None, "", "bytes=-", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4"])
def test_other_ranges_are_ignored(header) -> None:
    assert not is_served(header, 100)


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_a_range_outside_the_file_is_refused_with_its_size(header) -> None:
    with pytest.raises(ApiError) as caught:
        is_served(header, 100)
    assert caught.value.status == 416
    assert caught.value.headers()["Content-Range"] == "bytes */100"
