"""A server on this machine that gets alerts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """A server that keeps what it gets, and answers with the next of `answers`, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/secret"
        self.answers: list[int] = []
        self.bodies: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()

    def events(self) -> list[str]:
        return [json.loads(body)["event"] for body in self.bodies]

    def messages(self) -> list[str]:
        return [json.loads(body)["message"] for body in self.bodies]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.released.wait()
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if answer == 200:
            self.server.bodies.append(body)
            self.server.headers.append(dict(self.headers))
        self.send_response(answer)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...
