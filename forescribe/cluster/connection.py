"""The connection to a Ray cluster, with its traps: what fails becomes one line that says what to do.

    with connected("auto", status=print) as ray:
        ray.cluster_resources()

`auto` is a cluster on this machine that runs already, else a new one; with a number of `cards` it is always a
new one. Knows nothing of workers or recordings.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from forescribe.asr.errors import CapacityError, UsageError, how_to_install, visible

AUTO = "auto"

STARTS = 3
"""Attempts to start a cluster on this machine."""

CONNECT_S = 10.0
"""Seconds for a connection to a head."""

OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster of our own: what passes through it are transcripts."""


NAMESPACE = "forescribe"
QUIET = {"log_to_driver": False, "configure_logging": False, "namespace": NAMESPACE}


@contextmanager
def connected(
    address: str, *, status: Callable[[str], None] = lambda text: None, cards: int | None = None
) -> Iterator[Any]:
    """Connect to a cluster; yields the module `ray`. Ends a cluster that it has started. With `cards` it
    starts one on this machine, which has so many GPUs, whatever `address` says.

    Raises UsageError where Ray is missing and for an address that cannot be used, CapacityError where a
    cluster cannot be reached or started.
    """
    if cards is None:
        check_address(address)
    try:
        import ray
    except ModuleNotFoundError as error:
        option = "--cluster" if cards is None else "--workers"
        raise UsageError(f"{option} needs Ray: {how_to_install('cluster')}") from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _stdout_kept():
        with _signals_kept():
            if cards is None:
                _connect(ray, address, status)
            else:
                _start(ray, status, cards)
        try:
            yield ray
        finally:
            ray.shutdown()


def check_address(address: str) -> None:
    """Raises UsageError for what is no address of a cluster."""
    if address != AUTO and not _host(address):
        raise UsageError(
            f"--cluster {visible(address)} is no cluster: use auto, ray://HOST:10001, or HOST:6379 on a "
            "machine of it"
        )


def _connect(ray: Any, address: str, status: Callable[[str], None]) -> None:
    known = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    if not known:
        from ray._private.utils import read_ray_address

        # What the last cluster of this machine has left; if it was killed, Ray would wait without end.
        if not reachable(read_ray_address() or ""):
            return _start(ray, status)
    elif not reachable(known):
        raise _away("nothing listens there", known)
    # A client knows fewer options than a member of the cluster.
    options = {"namespace": NAMESPACE} if known.startswith("ray://") else QUIET
    try:
        ray.init(address=known or AUTO, **options)
    except Exception as error:
        if known or not isinstance(error, ConnectionError):
            raise _away(first_line(error), known or AUTO) from error
        _start(ray, status)


def _away(reason: str, address: str) -> CapacityError:
    return CapacityError(
        f"--cluster {visible(address)}: no cluster answers there ({reason}); check the address, the port "
        "(10001 for ray://, 6379 on a machine of the cluster), the network, and that this environment has "
        "the cluster's token (RAY_AUTH_TOKEN or ~/.ray/auth_token) and its versions of Ray and Python"
    )


def reachable(address: str) -> bool:
    """Whether something listens at an address. Ray's own connection would wait for minutes, or without
    end."""
    host, port = _host(address), address.rpartition(":")[2]
    if not host:
        return True  # a name that Ray may understand
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S):
            return True
    except OSError:
        return False


def _start(ray: Any, status: Callable[[str], None], cards: int | None = None) -> None:
    """Start a cluster on this machine; without `cards` Ray counts its GPUs. On a busy one this fails now and
    then: the second attempt finds what the first one has compiled."""
    status("starting Ray on this machine")
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                num_gpus=cards,
                **QUIET,
            )
            return
        except Exception as error:
            with suppress(Exception):
                ray.shutdown()
            if attempt == STARTS:
                raise CapacityError(
                    f"Ray did not start on this machine in {STARTS} attempts ({first_line(error)}); its "
                    "logs are in /tmp/ray/session_latest/logs. Try again when the machine is less busy, or "
                    "compile its modules first: python -m compileall -q "
                    f"{os.path.dirname(ray.__file__)}"
                ) from error
            status(f"Ray did not start ({first_line(error)}): attempt {attempt + 1} of {STARTS}")


@contextmanager
def _stdout_kept() -> Iterator[None]:
    """Keep Ray from printing messages of its processes to stdout, where results may go, as it does with
    `log_to_driver=False` too. The run tells what matters."""
    from ray._private import worker

    with patch.object(worker, "print_to_stdstream", lambda *arguments, **more: None):
        yield


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of signals: Ray replaces that of SIGTERM, and the command's ends a run cleanly."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _host(address: str) -> str:
    """The host of `ray://host:port` or `host:port`; empty for anything else."""
    rest = address.removeprefix("ray://")
    host, _, port = rest.rpartition(":")
    whole = bool(host) and port.isdecimal() and "/" not in rest
    return host.strip("[]") if whole else ""


def first_line(error: Exception) -> str:
    """What an error says first; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
