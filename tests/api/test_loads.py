"""The service under load: many at once, and for long."""

from __future__ import annotations

import random
import sys

import pytest

from tests.faults.crowd import crowd
from tests.faults.day import live_a_day


@pytest.mark.nightly
def test_two_hundred_uploads_at_once() -> None:
    sys.stdout.write(crowd())


@pytest.mark.nightly
def test_a_day_leaves_nothing_behind() -> None:
    sys.stdout.write(live_a_day(1.0, random.Random(0)))
