"""Connections to a cluster: what fails is said in one line, before anything is loaded."""

from __future__ import annotations

import signal
import socket
import sys
import types

import pytest

from forescribe.asr.errors import CapacityError, UsageError
from forescribe.cluster.connection import STARTS, check_address, connected


class FakeRay(types.ModuleType):
    """`init` raises what it is given, in order; None succeeds."""

    def __init__(self, *outcomes) -> None:
        super().__init__("ray")
        self.__file__ = "/site/ray/__init__.py"
        self.outcomes, self.inits, self.ended = list(outcomes), [], 0
        self.left = ""

    def init(self, **options) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does
        self.inits.append(options)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def install(*outcomes) -> FakeRay:
        module = FakeRay(*outcomes)
        private = types.ModuleType("ray._private")
        private.worker = worker = types.ModuleType("ray._private.worker")
        worker.print_to_stdstream = print
        monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setitem(sys.modules, "ray._private", private)
        utils = types.ModuleType("ray._private.utils")
        utils.read_ray_address = lambda: module.left
        monkeypatch.setitem(sys.modules, "ray._private.utils", utils)
        return module

    return install


def test_workers_of_this_machine_get_a_cluster_of_their_own(ray, monkeypatch) -> None:
    module = ray(None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # of another one
    with connected("here", cards=8):
        pass
    (options,) = module.inits
    assert (options["address"], options["num_gpus"], module.ended) == ("local", 8, 1)


def test_auto_joins_a_cluster_of_this_machine(ray) -> None:
    module = ray(None)
    before = signal.getsignal(signal.SIGTERM)
    with connected("auto"):
        assert [options["address"] for options in module.inits] == ["auto"]
        assert signal.getsignal(signal.SIGTERM) is before  # the command's own
    assert module.ended == 1


def test_ray_prints_nothing_to_stdout(ray, capsys) -> None:
    ray(None)
    from ray._private import worker

    with connected("auto"):
        worker.print_to_stdstream({"lines": ["A worker died"]}, ignore_prefix=False)
    assert capsys.readouterr().out == ""
    assert worker.print_to_stdstream is print


def test_auto_starts_one_where_there_is_none(ray) -> None:
    module, said = ray(ConnectionError("none"), None), []
    with connected("auto", status=said.append):
        assert module.inits[1]["address"] == "local"
        assert module.inits[1]["include_dashboard"] is False
    assert said == ["starting Ray on this machine"]


def test_a_start_is_tried_again(ray) -> None:
    module, said = ray(ConnectionError("none"), Exception("timed out during startup"), None), []
    with connected("auto", status=said.append):
        assert len(module.inits) == 3
    assert "attempt 2 of 3" in said[-1]


def test_a_start_that_fails_says_what_helps(ray) -> None:
    ray(ConnectionError("none"), *[Exception("timed out during startup")] * STARTS)
    with (
        pytest.raises(CapacityError, match=r"did not start .* compileall -q /site/ray"),
        connected("auto"),
    ):
        pass


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("form", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_where_nothing_listens_ray_is_not_asked(ray, closed_port: int, form: str) -> None:
    """It would wait for minutes, or without end."""
    module, address = ray(), form.format(closed_port)
    with (
        pytest.raises(CapacityError, match=f"{address}: no cluster answers there"),
        connected(address),
    ):
        pass
    assert module.inits == []


def test_the_address_of_a_cluster_that_was_killed_is_passed_over(ray, closed_port: int) -> None:
    module = ray(None)
    module.left = f"127.0.0.1:{closed_port}"
    with connected("auto"):
        assert [options["address"] for options in module.inits] == ["local"]


def test_a_named_cluster_that_is_away_is_no_reason_to_start_another(ray, closed_port, monkeypatch):
    ray()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(CapacityError, match="no cluster answers"), connected("auto"):
        pass


def test_what_listens_and_is_no_cluster(ray) -> None:
    ray(ConnectionError("ray client connection timeout"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(CapacityError, match=r"no cluster answers there \(ray client connection"),
            connected(address),
        ):
            pass


@pytest.mark.parametrize(
    "address", ["head", "ray://head", "http://head:8265", "ray://", "s3://a:1/b", "\x1b[31m:x", ""]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is no cluster: use auto"):
        check_address(address)
