"""Access to the live page: only with its token, and through a name of this machine.

A page of another site must not read it either: not by its own requests, nor by a name of its own
that it lets point to this machine (DNS rebinding).
"""

import socket
from hashlib import sha256
from ipaddress import ip_address
from secrets import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import URL
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp

TOKEN = "token"
"""Parameter of an address."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; connect-src 'self'; form-action 'self';"
        " frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of each response: a page runs only the scripts of this server, and loads nothing else."""


class Access(BaseHTTPMiddleware):
    """Refuse requests that change something, that other sites make, or that lack the token.

    The token comes in the address once, and in a cookie from then on.
    """

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        super().__init__(app)
        self._token = token
        names = ("localhost", host, socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in names}
        # Cookies do not tell ports apart, and a browser may know several servers.
        self._cookie = f"hookyard-{sha256(token.encode()).hexdigest()[:8]}"

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answer a request, or refuse it."""
        response = self._refuse(request)
        if response is None:
            response = self._log_in(request)
        if response is None:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    def _refuse(self, request: Request) -> Response | None:
        """Refuse requests that change something or that other sites make, whatever their token."""
        if request.method not in ("GET", "HEAD"):
            return _answer(405, "This server only answers GET and HEAD: it changes nothing.")

        host = request.headers.get("host", "")
        if not self._is_own_name(host):
            return _answer(
                403,
                "This server answers only to localhost, to IP addresses, and to the names of its"
                " machine.",
            )
        origin = request.headers.get("origin")
        if origin not in (None, f"http://{host}", f"https://{host}"):
            return _answer(403, "Other sites must not read this page.")
        return None

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header names this machine, or has an IP address, which no other
        site can let point here."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)

    def _log_in(self, request: Request) -> Response | None:
        """Give the cookie to a request with the token, and refuse one with neither."""
        if self._is_token(request.query_params.get(TOKEN, "")):
            # Without the token, so that it stays neither in the address bar nor in the history.
            address = URL(scope=request.scope).remove_query_params(TOKEN)
            target = f"{address.path}?{address.query}" if address.query else address.path
            response = RedirectResponse(f"/{target.lstrip('/')}", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return response

        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return _answer(401, "Open the address with the token, which hookyard serve has printed.")

    def _is_token(self, text: str) -> bool:
        return compare_digest(text.encode(), self._token.encode())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _answer(code: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", code)
