"""A receiver of callbacks on loopback, which confirms each."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver:
    """`url` is for jobs. `told` counts the callbacks by their ids; `unsigned` are those whose signature does
    not match."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.told, self.unsigned = Counter[str](), list[str]()
        own = {"told": self.told, "unsigned": self.unsigned}
        self.http = ThreadingHTTPServer((host, 0), type("_Own", (_Handler,), own))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://{host}:{self.http.server_port}/hook"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: Counter[str]
    unsigned: list[str]

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        id, sent = self.headers["webhook-id"], int(self.headers["webhook-timestamp"])
        right = Webhook(SECRET).sign(id, datetime.fromtimestamp(sent, UTC), text)
        self.told[id] += 1
        if self.headers["webhook-signature"] != right:
            self.unsigned.append(id)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""
