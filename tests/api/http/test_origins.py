"""Origins: a page in the user's browser can use this server only if it is this server's own."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.errors import DETAIL_PATHS
from forescribe.api.http.origins import Host, same_origin
from forescribe.api.settings import Settings, load
from forescribe.asr.errors import UsageError
from tests.api.contract import conforms

KEY = new_key()
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def application(**given) -> FastAPI:
    return create_app(Settings(**{"model": "random", "jobs": False, **given}))


def client(app: FastAPI, host: str = "localhost:8000") -> TestClient:
    """Not started: what is refused here needs no model."""
    name = host or "localhost"
    made = TestClient(app, base_url=f"http://{name}", raise_server_exceptions=False)
    if not host:
        made.headers["Host"] = ""
    return made


@pytest.fixture(scope="module")
def keyless() -> FastAPI:
    return application()


def routes(app: FastAPI) -> list[tuple[str, str]]:
    described = app.openapi()["paths"]
    shown = [
        (verb.upper(), path.replace("{name}", "random"))
        for path in described
        for verb in described[path]
    ]
    hidden = ["/", "/page/app.js", "/openapi.json", "/docs", "/nowhere"]
    return shown + [(verb, path) for path in hidden for verb in ("GET", "OPTIONS")]


HEALTH = ("/health", "/ready")


def test_no_route_answers_to_a_name_that_is_not_this_servers(keyless) -> None:
    """DNS rebinding: the page's own name means 127.0.0.1 now, and everything is same-origin to it."""
    evil = client(keyless, "evil.test:8000")
    told = {"Origin": "http://evil.test:8000", "Sec-Fetch-Site": "same-origin"}
    for headers in ({}, told):
        for verb, path in routes(keyless):
            answer = evil.request(verb, path, headers=headers)
            if path in HEALTH:
                assert answer.status_code in (200, 503), path
                continue
            assert answer.status_code == 403, (verb, path)
            if path not in DETAIL_PATHS:
                conforms(answer.json(), "ErrorResponse")
                assert answer.json()["error"]["code"] == "forbidden"
                assert "allowed_hosts" in answer.json()["error"]["message"]


def test_no_route_answers_to_a_page_of_another_origin(keyless) -> None:
    own = client(keyless)
    foreign = [
        {"Origin": "https://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},  # another server of the same machine
        {"Origin": "http://localhost:8000", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "audio"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Origin": "https://evil.test", "Access-Control-Request-Method": "POST"},
    ]
    for verb, path in routes(keyless):
        for headers in foreign:
            answer = own.request(verb, path, headers=headers)
            expected = (200, 405, 503) if path in HEALTH else (403,)
            assert answer.status_code in expected, (verb, path, headers)
            assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_programs_and_links_to_it_pass(keyless) -> None:
    own = client(keyless)
    for headers in (
        {},
        {"Origin": "http://localhost:8000"},
        {"Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", **NAVIGATION},
        {"Sec-Fetch-Site": "cross-site", **NAVIGATION},  # a link on another site
    ):
        assert own.get("/v1/models", headers=headers).status_code == 200, headers
    posted = own.post("/predict", headers={"Sec-Fetch-Site": "cross-site", **NAVIGATION})
    assert posted.status_code == 403  # a form on a foreign page


@pytest.mark.parametrize(
    ("settings", "answered", "refused"),
    [
        (
            {},
            ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "localhost."],
            ["evil.test", "x.localhost", "10.0.0.7", "0.0.0.0", "[fe80::1]", "", "a b", "[::1", "x:y"],
        ),
        (
            {"host": "0.0.0.0", "open_to_all": True},
            ["localhost", "10.0.0.7:8000", "[2001:db8::7]:8000"],
            ["asr.lan", "evil.test"],
        ),
        ({"host": "10.0.0.7", "open_to_all": True}, ["10.0.0.7", "10.0.0.8"], ["evil.test"]),
        ({"host": "asr.lan", "open_to_all": True}, ["asr.lan:8000", "ASR.lan"], ["evil.test"]),
        (
            {"allowed_hosts": ("asr.example.com", "*.lan")},
            ["asr.example.com", "Asr.Example.Com:443", "a.lan", "a.b.lan", "localhost"],
            ["lan", "example.com", "evil.test", "xasr.example.com", "asr.example.com.evil.test"],
        ),
        (
            {"allowed_hosts": ("asr.lan.", "[FD00:0::5]", "fd00::6", "*.example.com.")},
            ["asr.lan", "asr.lan.:80", "[fd00::5]:80", "[fd00:0::6]", "a.example.com", "localhost:"],
            ["[fd00::7]", "evil.test."],
        ),
        ({"host": "::", "open_to_all": True}, ["[fd00::5]:80", "10.0.0.7"], ["asr.lan"]),
        ({"allowed_hosts": ("*",)}, ["evil.test"], ["a b"]),
        ({"api_keys": {"team": digest(KEY)}}, ["anything.example.com"], []),
        (
            {"api_keys": {"team": digest(KEY)}, "allowed_hosts": ("asr.example.com",)},
            ["asr.example.com", "localhost"],
            ["evil.test"],
        ),
    ],
)  # fmt: skip
def test_the_names_that_a_server_answers_to(settings, answered, refused) -> None:
    app = application(**settings)
    for names, status in ((answered, 200), (refused, 403)):
        for name in names:
            headers = {"Host": name, "Authorization": f"Bearer {KEY}"}
            found = client(app).get("/v1/models", headers=headers).status_code
            assert found == status, name


def test_pages_of_allowed_origins_may_call() -> None:
    app = application(allowed_origins=("https://app.example.com",))
    told = {"Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"}
    asked = {
        "Access-Control-Request-Method": "PATCH",
        "Access-Control-Request-Headers": "upload-offset",
    }
    preflight = client(app).options("/v1/models", headers={**told, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "upload-offset" in preflight.headers["access-control-allow-headers"]
    answer = client(app).get("/v1/models", headers=told)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "access-control-allow-credentials" not in answer.headers
    other = {**told, "Origin": "https://app.example.com.evil.test"}
    assert client(app).options("/v1/models", headers={**other, **asked}).status_code == 403


def test_a_websocket_is_checked_too(keyless) -> None:
    @keyless.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    with client(keyless).websocket_connect(
        "/echo", headers={"Host": "localhost:8000", "Origin": "http://localhost:8000"}
    ) as own:
        assert own.receive_text() == "hello"
    for host, origin in (
        ("localhost:8000", "https://evil.test"),
        ("evil.test", "http://evil.test"),
    ):
        with pytest.raises(WebSocketDenialResponse) as caught:
            headers = {"Host": host, "Origin": origin}
            with client(keyless).websocket_connect("/echo", headers=headers):
                pass
        assert caught.value.status_code == 403
        assert caught.value.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_hosts", "asr.lan:8000"),
        ("allowed_hosts", "http://asr.lan"),
        ("allowed_hosts", "a.*.lan"),
        ("allowed_hosts", ""),
        ("allowed_origins", "app.example.com"),
        ("allowed_origins", "https://app.example.com/"),
        ("allowed_origins", "null"),
        ("allowed_origins", "*"),  # without keys
    ],
)
def test_settings_that_protect_nothing_are_refused(monkeypatch, name, value) -> None:
    monkeypatch.setenv(f"FORESCRIBE_{name.upper()}", json.dumps([value]))
    with pytest.raises(UsageError, match=name):
        load()


@given(st.text(max_size=30))
def test_any_text_parses_to_a_host_or_none(written) -> None:
    host = Host.parse(written)
    assert host is None or (host.name and host.port in (None, *range(100_000)))
    assert not same_origin(written, Host("localhost", 8000)) or written.strip().lower().startswith(
        "http"
    )


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://asr.lan", "asr.lan:80", True),
        ("https://asr.lan", "asr.lan", True),  # TLS ends at a proxy
        ("https://asr.lan", "asr.lan:443", True),
        ("http://asr.lan:8000", "asr.lan", False),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("ftp://asr.lan", "asr.lan", False),
        ("http://asr.lan@evil.test", "asr.lan", False),
    ],
)
def test_an_origin_is_compared_with_the_host(origin, host, expected) -> None:
    parsed = Host.parse(host)
    assert parsed is not None and same_origin(origin, parsed) is expected
