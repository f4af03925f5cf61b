"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# Shared machines are slow at times; random failures nobody can repeat are worse than fewer cases.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
