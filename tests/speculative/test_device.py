"""Devices: chosen by name, or refused; and what a round asks of a Gaudi card, on a double of it."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request, device
from forescribe.speculative.device import Device, Stopwatch, available, choose
from forescribe.speculative.engine.captures import capture_for
from forescribe.speculative.errors import DeviceError
from forescribe.speculative.requests import Result
from tests.speculative.graphs.workloads import Pretend
from tests.speculative.tiny import TinyModel

# Choosing


def machine_with(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """A machine with these devices and no others."""
    monkeypatch.setattr(device, "available", lambda kind: kind in kinds)


@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        (("cpu",), "cpu"),
        (("cpu", "mps"), "mps"),
        (("cpu", "hpu"), "hpu"),
        (("cpu", "mps", "hpu", "cuda"), "cuda"),
    ],
)
@pytest.mark.parametrize("name", [None, "auto", "AUTO"])
def test_auto_takes_the_best_there_is(monkeypatch, kinds, best, name) -> None:
    machine_with(monkeypatch, *kinds)
    assert choose(name).kind == best


def test_each_kind_has_a_dtype_of_its_own(monkeypatch) -> None:
    machine_with(monkeypatch, *device.KINDS)
    dtypes = {kind: choose(kind).dtype for kind in device.KINDS}
    assert dtypes == {
        "cuda": torch.float16,
        "hpu": torch.bfloat16,
        "mps": torch.float32,
        "cpu": torch.float32,
    }


@pytest.mark.parametrize("name", device.DTYPES)
def test_a_dtype_can_be_asked_for(name, monkeypatch) -> None:
    monkeypatch.setattr(device, "bfloat16_units", lambda: True)
    assert choose("cpu", name) == Device("cpu", getattr(torch, name))


@pytest.mark.parametrize(
    ("name", "units"),
    [("avx512_bf16", True), ("amx_bf16", True), ("bf16", True), ("avx512_f", False)],
)
def test_bfloat16_is_the_format_of_weights_alone_where_no_unit_multiplies_it(
    name, units, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True, "amx_tile": False})
    assert device.bfloat16_units() == units
    place = choose("cpu", "bfloat16")
    assert place.dtype == (torch.bfloat16 if units else torch.float32)
    assert place.stored == torch.bfloat16
    assert choose("cpu") == Device("cpu", torch.float32)
    assert choose("cpu", "float16").dtype == torch.float16
    model = torch.nn.Linear(3, 5).to(place.stored)
    before = [weight.clone() for weight in model.parameters()]
    for weight, rounded in zip(place.placed(model).parameters(), before, strict=True):
        assert weight.dtype == place.dtype and torch.equal(weight.to(torch.bfloat16), rounded)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("tpu", None, "unknown device 'tpu'; known: auto, cuda, hpu, mps, cpu"),
        ("cpu", "int8", "unknown dtype 'int8'; known: auto, float32"),
        ("cuda", None, "no usable cuda device; try --device cpu"),
        ("mps", None, "no usable mps device"),
        ("hpu", None, "no usable hpu device .*habana_frameworks"),
        ("cpu:3", None, "no device cpu:3; it has cpu, cpu:0"),
        ("cpu:x", None, "no device cpu:x"),
        ("cpu:", None, "no device cpu:;"),
        ("", "float64", "unknown dtype"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(monkeypatch, name, dtype, message) -> None:
    machine_with(monkeypatch, "cpu")
    with pytest.raises(DeviceError, match=message) as caught:
        choose(name, dtype)
    assert "\n" not in str(caught.value)


def test_an_index_is_kept_and_a_card_too_many_refused(monkeypatch) -> None:
    machine_with(monkeypatch, "cpu", "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose("cuda:1").torch == torch.device("cuda", 1)
    assert choose("cuda").index is None
    with pytest.raises(DeviceError, match="no device cuda:2; it has cuda, cuda:0, cuda:1"):
        choose("cuda:2")


def test_a_cpu_rounds_as_it_is_and_looks_every_time() -> None:
    cpu = choose("cpu")
    assert capture_for(cpu) is None
    assert cpu.rounds_per_poll == 1 and not cpu.static_shapes and not cpu.late_reads
    cpu.synchronize()


def test_a_stopwatch_sums_laps_by_stage(monkeypatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr("forescribe.speculative.device.time.perf_counter", lambda: next(times))
    watch = Stopwatch(choose("cpu"))
    watch.start()
    watch.mark("draft")
    watch.mark("score")
    watch.start()
    watch.mark("draft")
    assert watch.seconds == {"draft": 5.0, "score": 2.0}


# Gaudi, on a double that records


@pytest.fixture
def habana(monkeypatch) -> SimpleNamespace:
    """`habana_frameworks`, as far as we use it."""
    package, inner = map(ModuleType, ("habana_frameworks", "habana_frameworks.torch"))
    for module in (package, inner):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package.__path__ = inner.__path__ = []
    inner.hpu = SimpleNamespace(is_available=lambda: True, device_count=lambda: 8)
    return SimpleNamespace(torch=inner)


def imported(monkeypatch) -> list[str]:
    """Names imported from now on by the device module."""
    names: list[str] = []
    real = device.importlib.import_module
    fake = SimpleNamespace(
        import_module=lambda name: (names.append(name), real(name))[1], util=device.importlib.util
    )
    monkeypatch.setattr(device, "importlib", fake)
    return names


def test_a_card_that_is_looked_for_is_found(habana) -> None:
    assert available("hpu")
    assert choose("hpu") == Device("hpu", torch.bfloat16)
    assert choose("hpu:7").index == 7
    with pytest.raises(DeviceError, match="hpu:8"):
        choose("hpu:8")


def test_a_package_without_a_card_is_no_device(habana) -> None:
    habana.torch.hpu.is_available = lambda: False
    with pytest.raises(DeviceError, match="no usable hpu"):
        choose("hpu")


def test_nothing_of_gaudi_is_imported_for_another_device(monkeypatch) -> None:
    names = imported(monkeypatch)
    chosen = choose("cpu")
    assert capture_for(chosen) is None
    chosen.synchronize()
    assert not available("hpu") and names == []


def tiny(on: Device | None, gamma: int = 3) -> Engine:
    return Engine(
        TinyModel(),
        ModelDrafter(TinyModel(blur=0.3)) if gamma else None,
        batch=3,
        eos=(0,),
        schedule=Fixed(gamma),
        device=on,
    )


WORK = [
    Request(
        prompt=tuple(range(1, 2 + n % 7)), encoder_states=n % 8, max_new_tokens=4 + 5 * n, tag=n
    )
    for n in range(8)
]


def texts(engine: Engine) -> dict[int, Result]:
    return {r.request.tag: r for r in engine.run(WORK)}


@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("kind", ["hpu", "mps"])
def test_looking_seldom_changes_no_text(monkeypatch, kind, gamma) -> None:
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    seldom = Pretend(kind, torch.float32)
    assert seldom.rounds_per_poll > 1
    found, expected = texts(tiny(seldom, gamma)), texts(tiny(None, gamma))
    assert {t: r.tokens for t, r in found.items()} == {t: r.tokens for t, r in expected.items()}
    for tag, result in found.items():  # rounds after the end are not counted
        assert result.rounds == expected[tag].rounds
        assert (result.drafted, result.accepted) == (expected[tag].drafted, expected[tag].accepted)


def test_the_free_memory_of_a_cpu_is_what_system_and_container_leave(tmp_path):
    assert Device("cpu", torch.float32).free_memory() > 1 << 20
    assert Device("mps", torch.float32).free_memory() is None
    assert device._free_host_memory(tmp_path) is None  # not Linux
    files = {"proc/meminfo": "MemTotal:  900 kB\nMemAvailable:  100 kB\n"}

    def free(**group: str) -> int | None:
        for name, text in {
            **files,
            **{f"sys/fs/cgroup/memory.{k}": v for k, v in group.items()},
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return device._free_host_memory(tmp_path)

    assert free() == 100 << 10
    used = {"current": str(90 << 10), "stat": f"anon 5\ninactive_file {20 << 10}\n"}
    assert free(max="max", **used) == 100 << 10
    assert free(max=str(120 << 10), **used) == 50 << 10
    assert free(max=str(60 << 10), **used) == 0


NVIDIA_ALONE = re.compile(
    r"pynvml|nvidia_smi|torch\.version\.cuda|import (cupy|triton)|get_device_capability|cuda\.nvtx|"
    r"cudart\(|compute_capability"
)
"""What torch for ROCm, whose device is named cuda too, does not have or answers differently."""


def test_nothing_asks_for_an_nvidia_device_alone() -> None:
    root = Path(__file__).parents[2]
    parts = ("api", "asr", "diarize", "forescribe", "speculative", "text")
    sources = [path for part in parts for path in (root / part).rglob("*.py")]
    assert len(sources) > 200
    found = [path.name for path in sources if NVIDIA_ALONE.search(path.read_text("utf-8"))]
    assert found == []
    assert NVIDIA_ALONE.search("import pynvml") and NVIDIA_ALONE.search("torch.version.cuda")
