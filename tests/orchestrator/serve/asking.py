"""A browser without a network: it asks an application, and keeps its cookies."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Browser:
    def __init__(self, app: ASGIApp, host: str = "127.0.0.1:8710") -> None:
        self._app = app
        self._host = host
        self._cookies: dict[str, str] = {}

    def get(self, address: str, method: str = "GET", **headers: str) -> Answer:
        """Ask for an address, which is sent as it is: no part of it is resolved or escaped."""
        path, _, query = address.partition("?")
        sent = {"host": self._host, **{name.replace("_", "-"): headers[name] for name in headers}}
        if self._cookies:
            sent["cookie"] = "; ".join(f"{name}={text}" for name, text in self._cookies.items())
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in sent.items()],
        }
        answer = asyncio.run(self._ask(scope))
        if "set-cookie" in answer.headers:
            name, _, text = answer.headers["set-cookie"].partition(";")[0].partition("=")
            self._cookies[name] = text
        return answer

    async def _ask(self, scope: dict[str, Any]) -> Answer:
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, send)
        start, *parts = messages
        headers = {name.decode(): text.decode() for name, text in start["headers"]}
        body = b"".join(part["body"] for part in parts if "body" in part)
        return Answer(start["status"], headers, body)
