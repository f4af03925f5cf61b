"""Callbacks: signed so that others can tell, sent nowhere inside, tried until they are known."""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpcore
import httpx
import pytest
from standardwebhooks import Webhook

from forescribe.api.access import outbound
from forescribe.api.jobs.callbacks import SCHEDULE_S, Webhooks, check_secret
from forescribe.api.jobs.tables import Job
from tests.api.conftest import memo, until
from tests.api.jobs.application import JOBS, application, ended, ready, submit

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
HOME = (ipaddress.ip_network("127.0.0.0/8"),)
HOUSE = {"webhook_networks": ("127.0.0.0/8",)}


class Receiver(ThreadingHTTPServer):
    """Answers by a list, keeps what came."""

    daemon_threads = True

    def __init__(self, *answers: int) -> None:
        self.answers, self.seen = list(answers), []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def __exit__(self, *args) -> None:
        self.shutdown()
        super().__exit__(*args)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((dict(self.headers), text))
        self.send_response(
            self.server.answers[min(len(self.server.seen), len(self.server.answers)) - 1]
        )
        self.send_header("location", "http://127.0.0.1:1/")
        self.end_headers()

    def log_message(self, *args) -> None:
        """Quiet."""


def job(url: str) -> Job:
    hook = {"hook_url": url, "hook_secret": SECRET, "hook_state": "pending"}
    return Job(id="job_1", owner="", state="succeeded", label="secret.wav", total_s=9.0, **hook)


def test_the_schedule_is_that_of_standard_webhooks() -> None:
    hooks = Webhooks()
    waits = [hooks.wait_s(n) for n in range(len(SCHEDULE_S))]
    assert all(a <= b <= 1.1 * a for a, b in zip(SCHEDULE_S, waits, strict=True))
    assert hooks.wait_s(len(SCHEDULE_S)) is None and sum(SCHEDULE_S) > 3 * 24 * 3600


def test_others_can_tell_who_signed() -> None:
    with Receiver(204) as receiver:
        assert Webhooks(allowed=HOME).deliver(job(receiver.url)) == "delivered"
        headers, text = receiver.seen[0]
        told = Webhook(SECRET).verify(text, {k.lower(): v for k, v in headers.items()})
    assert told == {
        "type": "job.succeeded",
        "job_id": "job_1",
        "state": "succeeded",
        "url": "/v1/jobs/job_1",
    }
    assert b"secret.wav" not in text


@pytest.mark.parametrize(
    ("status", "answer"), [(200, "delivered"), (302, "failed"), (410, "gone"), (500, "failed")]
)
def test_only_a_2xx_is_success(status, answer) -> None:
    with Receiver(status) as receiver:
        assert Webhooks(allowed=HOME).deliver(job(receiver.url)) == answer
        assert len(receiver.seen) == 1


def test_nobody_home_is_a_failure() -> None:
    with Receiver(200) as receiver:
        url = receiver.url
    assert Webhooks(allowed=HOME, timeout_s=2).deliver(job(url)) == "failed"


def test_a_receiver_that_drips_is_left_when_the_time_is_over() -> None:
    """Each byte comes long before the limit on one read."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not over.wait(0.02):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        port = listening.getsockname()[1]
        began = time.monotonic()
        try:
            told = Webhooks(HOME, timeout_s=0.3).deliver(job(f"http://127.0.0.1:{port}/"))
        finally:
            over.set()
            thread.join()
    assert told == "failed" and time.monotonic() - began < 1.5


@pytest.mark.parametrize("secret", ["whsec_%", "whsec_AAAA", "short", ""])
def test_a_secret_that_cannot_sign_is_refused(secret) -> None:
    with pytest.raises(ValueError):
        check_secret(secret)
    assert check_secret(SECRET) == SECRET


INSIDE = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 ::1 ::
fe80::1 fe80::1%eth0 fc00::1 fec0::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1
64:ff9b:1::1 2002:7f00:1:: 2001::1 ::7f00:1 192.88.99.1 192.0.0.9 198.18.0.1 203.0.113.7
240.0.0.1 255.255.255.255 ff02::1 5f00::1 100::1 2001:20::1 2001:db8::1 3fff::1
::ffff:0:127.0.0.1 4000::1
"""
"""Among them those of segment routing (5f00::), and IPv4 in the forms that IPv6 has for it."""


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_inside_do_not_pass(address) -> None:
    assert not outbound.public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_addresses_of_the_internet_pass(address) -> None:
    assert outbound.public(ipaddress.ip_address(address))


NO_ADDRESSES = """
file:///etc/passwd ftp://example.org http:// //x http://a:b@example.org http://x:99999
http://127.0.0.1/hook https://127.1 http://2130706433/ http://0x7f.0.0.1/ http://0177.0.0.1/
http://10.0.0.1. http://192.168.1.1 http://[::1]/ http://[::ffff:10.0.0.1]/ http://[fe80::1%25eth0]/
http://[64:ff9b::a00:1]/ http://[5f00::1]/ http://169.254.169.254/latest/meta-data http://localhost/
http://LocalHost./ http://a.localhost/ http://example.org:8080/ http://93.184.215.14:22/
http://a..b/
"""


@pytest.mark.parametrize(
    "url",
    [
        *NO_ADDRESSES.split(),
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://127\u30020\u30020\u30021/",
        "http://a b/",
        "http://" + "a" * 64 + ".example/",
        "http://" + "a." * 127 + "example/",
        "http://\ud800/",
        "https://example.org/\r\nX-Header: value",
        "https://example.org/?a=\n",
        "https://exam\nple.org/",
        "https://example.org/\thook",
        "\nhttps://example.org/",
        " https://example.org/",
        "https://example.org/ ",
        "https://example.org/a b",
        "https://example.org/\xa0",
        "https://example.org/\x7f",
        "https://example.org/\x00",
        "https://example.org/\u2028",
        "https://example.org/\ud800",
    ],
)
def test_what_is_no_web_address_is_refused(url) -> None:
    with pytest.raises(outbound.Refused):
        outbound.check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hook?x=1",
        "http://example.org:443",
        "https://93.184.215.14/",
        "https://d\xfc.example",
        "https://a_b.example.",
    ],
)
def test_what_is_one_is_taken(url) -> None:
    assert outbound.check_url(url) == url


def test_networks_in_the_house_are_taken_where_the_settings_name_them() -> None:
    for url in (
        "http://127.0.0.1:8080/",
        "http://127.1:9/",
        "http://[::ffff:127.0.0.1]:9/",
        "http://hook.lan:8080/",
    ):
        assert outbound.check_url(url, HOME) == url
    with pytest.raises(outbound.Refused, match="private"):
        outbound.check_url("http://10.0.0.1/", HOME)


SPELLINGS = """
127.0.0.1 localhost x.localhost. 2130706433 017700000001 0177.0.0.1 0x7f000001 127.1 [::1]
[::ffff:127.0.0.1]
"""


@pytest.mark.parametrize("host", SPELLINGS.split())
def test_no_spelling_of_this_machine_is_called(host) -> None:
    """The seam into httpx holds: without the guard the receiver would be reached."""
    with Receiver(200) as receiver:
        url = f"http://{host}:{receiver.server_port}/hook"
        assert Webhooks(timeout_s=2).deliver(job(url)) == "failed"
        assert not receiver.seen


def test_a_name_is_judged_where_the_connection_goes() -> None:
    """A resolver whose second answer is inside (DNS rebinding) is asked once."""
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.215.14"] if len(asked) == 1 else ["127.0.0.1"]

    connected = []

    class Backend(httpcore.MockBackend):
        def connect_tcp(self, host, *args, **named):
            connected.append(host)
            raise httpcore.ConnectError("far away")

    guard = outbound.CheckedBackend(resolve=rebinding)
    guard._backend = Backend([])
    with pytest.raises(httpcore.ConnectError):
        guard.connect_tcp("example.org", 443)
    assert (asked, connected) == (["example.org"], ["93.184.215.14"])


def test_the_second_address_is_called_where_the_first_refuses() -> None:
    with Receiver(200) as receiver:
        with outbound.client(
            timeout_s=20, allowed=HOME, resolve=lambda *_: ["127.0.0.2", "127.0.0.1"]
        ) as http:
            answer = http.post(f"http://hook.example:{receiver.server_port}/hook", content=b"{}")
        assert answer.status_code == 200 and len(receiver.seen) == 1


@pytest.mark.parametrize("answering", [0, 1, 2, None])
def test_addresses_are_tried_in_order_within_one_time_limit(answering: int | None) -> None:
    addresses = ["93.184.215.14", "93.184.215.15", "2606:2800:21f:cb07::1"]
    connected, limits = [], []

    class Backend(httpcore.MockBackend):
        def connect_tcp(self, host, port, timeout, *args, **named):
            connected.append(host)
            limits.append(timeout)
            if len(connected) - 1 == answering:
                return httpcore.MockStream([])
            raise (httpcore.ConnectError, httpcore.ConnectTimeout)[len(connected) % 2]("no")

    guard = outbound.CheckedBackend(
        resolve=lambda host, port: addresses, end_s=time.monotonic() + 30
    )
    guard._backend = Backend([])
    if answering is None:
        with pytest.raises(httpcore.TimeoutException):
            guard.connect_tcp("example.org", 443, timeout=60)
    else:
        guard.connect_tcp("example.org", 443, timeout=60)
    assert connected == addresses[: 3 if answering is None else answering + 1]
    # What a refusal leaves is for the others; all that is left, for the last one.
    assert limits == pytest.approx([10, 15, 30][: len(limits)], abs=2)


@pytest.mark.parametrize(
    ("answers", "port"), [(["93.184.215.14", "10.0.0.1"], 443), ([], 443), (["93.184.215.14"], 22)]
)
def test_one_address_inside_refuses_the_name_and_so_does_a_port(answers, port) -> None:
    guard = outbound.CheckedBackend(resolve=lambda host, port: answers)
    with pytest.raises(httpcore.ConnectError) as caught:
        guard.connect_tcp("example.org", port)
    assert isinstance(caught.value.__cause__, outbound.Refused)


def test_the_environment_names_no_proxy(monkeypatch) -> None:
    with Receiver(200) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        with outbound.client(timeout_s=2) as http, pytest.raises(httpx.ConnectError):
            http.post("http://10.0.0.1/")
        assert not proxy.seen


@pytest.mark.parametrize(
    ("answers", "state", "tries"), [((500, 200), "delivered", 2), ((410,), "gone", 1)]
)
def test_a_job_tells_of_its_end_until_it_is_known(
    tmp_path, transcriber, decoders, answers, state, tries
) -> None:
    hooks = Webhooks(allowed=HOME, schedule_s=(0, 0.05, 0.05), timeout_s=5)
    with (
        Receiver(*answers) as receiver,
        application(tmp_path, transcriber, decoders, webhooks=hooks, **HOUSE) as client,
    ):
        ready(client)
        fields = {"webhook_url": receiver.url, "webhook_secret": SECRET}
        id = submit(client, memo(2), **fields).json()["id"]
        over = ended(client, id)
        assert SECRET not in json.dumps(over)
        until(lambda: client.get(f"{JOBS}/{id}").json()["webhook"]["state"] == state)
        assert client.get(f"{JOBS}/{id}").json()["webhook"] == {"state": state, "tries": tries}
        ids = {headers["webhook-id"] for headers, _ in receiver.seen}
        assert len(receiver.seen) == tries and ids == {f"msg_{id}.1"}
        assert {text for _, text in receiver.seen} == {receiver.seen[0][1]}
