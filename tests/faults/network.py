"""A network of its own for one process, whose packets to chosen addresses are lost, late or cut off.

    with link() as net:
        subprocess.run([*net.prefix, "program", ...])  # is net.inside, and meets others at net.here
        net.weather[net.database] = Weather(lost=0.1)

Two TUN devices, one of them in a network namespace, and a thread that carries packets between them, as
kernels of containers have no netem. Needs root and `ip`.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.faults.harness import NotRun

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_numbers = itertools.count(os.getpid() % 200)


@dataclass(frozen=True)
class Weather:
    """What becomes of packets to and from an address."""

    cut: bool = False
    lost: float = 0.0  # a share
    late_s: float = 0.0  # each way

    def carries(self, rng: random.Random) -> bool:
        return not self.cut and rng.random() >= self.lost


FAIR = Weather()


@dataclass
class Link(threading.Thread):
    """Four addresses: the process's, and three of this machine, of which clients use `here`."""

    inside: str
    here: str
    database: str
    objects: str
    prefix: tuple[str, ...]
    ends: tuple[int, int]
    weather: dict[str, Weather] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        other: Mapping[int, int] = MappingProxyType(
            {self.ends[0]: self.ends[1], self.ends[1]: self.ends[0]}
        )
        waiting: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()
        with selectors.DefaultSelector() as reading:
            for end in self.ends:
                reading.register(end, selectors.EVENT_READ)
            while not self.over.is_set():
                wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
                for key, _ in reading.select(min(wait, 0.2)):
                    packet = os.read(key.fd, 1 << 16)
                    found = self._weather(packet)
                    if found.carries(self.rng):
                        due = time.monotonic() + found.late_s
                        heapq.heappush(waiting, (due, next(numbers), other[key.fd], packet))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, end, packet = heapq.heappop(waiting)
                    os.write(end, packet)

    def _weather(self, packet: bytes) -> Weather:
        if packet[0] >> 4 != 4:
            return Weather(cut=True)  # the kernel's own packets of IPv6
        sides = (socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16))
        return next((self.weather[side] for side in sides if side in self.weather), FAIR)


@contextmanager
def link() -> Iterator[Link]:
    """Raises NotRun where there is no root, no `ip` or no /dev/net/tun."""
    if os.getuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        raise NotRun("a network namespace needs root, Debian's iproute2 and /dev/net/tun")
    number = next(_numbers)
    name, net = f"fault{os.getpid()}-{number}", f"10.213.{number % 250}"
    with ExitStack() as stack:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "delete", name)
        ends = []
        for device in (f"fin{number}", f"fout{number}"):
            end = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, end)
            asked = struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI)
            fcntl.ioctl(end, _TUNSETIFF, asked)
            ends.append(end)
        _ip("link", "set", f"fin{number}", "netns", name)
        _ip("-n", name, "address", "add", f"{net}.10/24", "dev", f"fin{number}")
        for device in ("lo", f"fin{number}"):
            _ip("-n", name, "link", "set", device, "up")
        for last in (1, 2, 3):
            _ip("address", "add", f"{net}.{last}/24", "dev", f"fout{number}")
        _ip("link", "set", f"fout{number}", "up")
        places = (f"{net}.{last}" for last in (10, 1, 2, 3))
        made = Link(*places, prefix=("ip", "netns", "exec", name), ends=(ends[0], ends[1]))
        made.start()
        stack.callback(made.join)
        stack.callback(made.over.set)
        yield made


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRun(f"ip {' '.join(words)}: {done.stderr.strip()}")
