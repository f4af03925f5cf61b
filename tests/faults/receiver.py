"""A webhook receiver that gives prepared answers and records the requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver:
    """A receiver on loopback. `answers` are status codes, `hang`, or redirect targets; the last one is
    repeated."""

    def __init__(self, answers: list[int | str]) -> None:
        self.seen: list[tuple[Mapping[str, str], bytes]] = []
        self.answers = answers
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.seen.append(({k.lower(): v for k, v in self.headers.items()}, body))
                at = min(len(receiver.seen), len(receiver.answers)) - 1
                answer = receiver.answers[at]
                if answer == "hang":
                    time.sleep(4)
                    return
                if isinstance(answer, str):
                    self.send_response(302)
                    self.send_header("location", answer)
                else:
                    self.send_response(answer)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/hook"

    def signed(self) -> bool:
        """Whether all requests were signed according to Standard Webhooks."""
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        for headers, body in self.seen:
            text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            made = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
            if headers["webhook-signature"] != f"v1,{made}":
                return False
        return bool(self.seen)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
