"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Shared machines are slow at times; random failures that cannot be repeated are worse than fewer cases.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# No test leaves a compiler behind, and none is half on one engine and half on another.
os.environ.setdefault("FORESCRIBE_COMPILE", "never")

# As the command does for itself, before torch loads OpenMP: helper threads that wait awake for a core
# made tests beside other work up to ten times slower.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "3000"

# Workers share the cores: more threads than cores cost several times what they gain.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
