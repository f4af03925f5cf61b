"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pytest
from hypothesis import settings

from forescribe.asr.model.conversion.converting import cache_folder

if TYPE_CHECKING:
    from torch import Tensor

    from forescribe.asr.audio.sandbox import Decoders
    from forescribe.speculative.native.adapters import NativeEncoder

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

# What a run of tests keeps in the cache is its own; published models stay where they are.
if "FORESCRIBE_CACHE" not in os.environ:
    CACHE = TemporaryDirectory(prefix="forescribe-tests-")
    os.environ.setdefault("TESTS_REAL_MODELS", str(cache_folder() / "real"))
    os.environ["FORESCRIBE_CACHE"] = CACHE.name


@pytest.fixture(scope="session", autouse=True)
def no_advice() -> Iterator[None]:
    """Commands print the same on machines without native kernels. The advice to compile them has tests of its
    own, which call it directly."""
    from forescribe.speculative.native import library

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "advice", lambda *args, **options: None)
        yield


@pytest.fixture(scope="session")
def draft_faults() -> Iterator[list[Exception]]:
    """The faults of drafters since the last test."""
    from forescribe.speculative.errors import OF_THE_DRAFTER, DecodingError

    found: list[Exception] = []
    make = DecodingError.__init__

    def made(self: DecodingError, stage: str, cause: BaseException) -> None:
        make(self, stage, cause)
        if stage in OF_THE_DRAFTER:
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodingError, "__init__", made)
        yield found


@pytest.fixture(autouse=True)
def drafts_work(draft_faults: list[Exception], request: pytest.FixtureRequest) -> Iterator[None]:
    """A draft that fails is an error of a test that does not mean it to: what is written stays right, so
    nothing else would tell."""
    yield
    faults = draft_faults.copy()
    draft_faults.clear()
    if faults and request.node.get_closest_marker("failing_drafts") is None:
        pytest.fail(f"{len(faults)} faults of drafters, the first: {faults[0]}")


@pytest.fixture(scope="session")
def decoders() -> Iterator[Decoders]:
    """Decoders that stay: pools and services come and go, and loading decoders takes more than a second."""
    from forescribe.asr.audio.sandbox import Decoders

    class Shared(Decoders):
        def close(self) -> None:
            pass

    made = Shared()
    yield made
    Decoders.close(made)


@pytest.fixture(scope="module")
def encoded_once() -> Iterator[None]:
    """Each window of a module's tests goes through the native encoder once per model, which is half of their
    time otherwise. A window's states depend on nothing but the weights and its features, as
    `test_native_encoder` says."""
    import torch

    from forescribe.speculative.native.adapters import NativeEncoder

    make, encode = NativeEncoder.__init__, NativeEncoder.states
    weights: WeakKeyDictionary[NativeEncoder, tuple[bytes, ...]] = WeakKeyDictionary()
    known: dict[tuple[bytes, ...], Tensor] = {}

    def digest(values: Tensor) -> bytes:
        return sha256(values.detach().contiguous().view(torch.uint8).numpy()).digest()

    def made(self: NativeEncoder, encoder: Any) -> None:
        weights[self] = tuple(map(digest, encoder.state_dict().values()))
        make(self, encoder)

    def states(self: NativeEncoder, features: Tensor) -> Tensor:
        key = (*weights[self], digest(features))
        if key not in known:
            known[key] = encode(self, features)
        return known[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeEncoder, "__init__", made)
        patch.setattr(NativeEncoder, "states", states)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported modules stay for the whole run: the garbage collector leaves their million objects out. A full
    collection took 0.6 s, and there are tests that ask for one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: a quarter of the time tests wait, for processes, threads and clocks."""
    return len(os.sched_getaffinity(0)) + 1


NIGHTLY = ("benchmarks", "deploy", "training")
"""Folders of tests whose subject does not ship or changes rarely: all of them are `nightly`."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say why nothing has run, as in `pytest tests/training`."""
    named = {part for argument in config.args for part in Path(argument).parts}
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and named.intersection(NIGHTLY):
        text = "these tests are `nightly`: run them with -m nightly, or all by scripts/nightly"
        terminalreporter.write_line(text)


CANNOT_BE_INSTALLED = re.compile("no CUDA device|this machine has|names no folder|real voices")
"""Reasons of skipped tests that remain where everything was installed."""


def required(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip for want of something that could have been installed into a failure, where
    TESTS_REQUIRE_ALL is set, as by scripts/nightly: nobody would run the test otherwise."""
    if not report.skipped or hasattr(report, "wasxfail") or "TESTS_REQUIRE_ALL" not in os.environ:
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not CANNOT_BE_INSTALLED.search(reason):
        report.outcome = "failed"
        report.longrepr = f"TESTS_REQUIRE_ALL is set, and this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    required(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the nightly folders. Skip what needs the native kernels, with the reason, where they
    cannot be used."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in NIGHTLY:
            item.add_marker("nightly")
    needing = [item for item in items if item.get_closest_marker("native")]
    if not needing:
        return
    from forescribe.speculative.native import library

    reason = library.missing()
    if reason is not None:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=reason))
