"""Who may read the live page. The application behind it answers everything with `secret`."""

import socket
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from orchestrator.serve.access import HEADERS, Access
from tests.orchestrator.serve.asking import Browser

TOKEN = "t0ken"


def answer(request: Request) -> Response:
    return PlainTextResponse("secret")


def client(token: str = TOKEN, host: str = "127.0.0.1") -> Browser:
    routes = [Route("/{path:path}", answer, methods=["GET", "POST", "DELETE"])]
    return Browser(
        Starlette(routes=routes, middleware=[Middleware(Access, token=token, host=host)])
    )


def test_token_in_the_address_becomes_a_cookie() -> None:
    browser = client()
    assert browser.get("/").code == 401

    answered = browser.get(f"/runs/a%20b?filter=x&token={TOKEN}")
    assert answered.code == 303
    assert answered.headers["location"] == "/runs/a%20b?filter=x"
    cookie = answered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie

    assert browser.get("/").text == "secret"


@pytest.mark.parametrize("token", ["", "t0ke", "t0kenn", "T0KEN", "t\u00f6ken"])
def test_wrong_token_reads_nothing(token: str) -> None:
    answered = client().get(f"/?token={quote(token)}")
    assert answered.code == 401
    assert "secret" not in answered.text
    assert "set-cookie" not in answered.headers


def test_cookies_of_two_servers_do_not_replace_each_other() -> None:
    cookies = [
        client(token).get(f"/?token={token}").headers["set-cookie"] for token in (TOKEN, "other")
    ]
    names = [cookie.partition("=")[0] for cookie in cookies]
    assert names[0] != names[1]


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/%2e%2e"])
def test_redirect_stays_on_this_server(path: str) -> None:
    answered = client().get(f"{path}?token={TOKEN}")
    assert answered.headers["location"].startswith("/evil.example/")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8710", "", "[::1", "a@b"])
def test_names_of_other_sites_are_refused(host: str) -> None:
    answered = client().get(f"/?token={TOKEN}", host=host)
    assert answered.code == 403


@pytest.mark.parametrize(
    "host", ["localhost:9000", "LOCALHOST", "127.0.0.1", "[::1]:8710", "10.0.0.7:1", "gpu-box:8710"]
)
def test_names_and_addresses_of_this_machine_are_answered(host: str) -> None:
    browser = client(host="gpu-box")
    answered = browser.get(f"/?token={TOKEN}", host=host)
    assert answered.code == 303


@pytest.mark.parametrize("host", ["gpu-box:8710", "GPU-box.cluster.example", "chosen.example"])
def test_short_and_full_names_of_this_machine_are_answered(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu-box.cluster.example")
    browser = client(host="chosen.example")
    assert browser.get(f"/?token={TOKEN}", host=host).code == 303
    assert browser.get(f"/?token={TOKEN}", host="gpu-box.evil.example").code == 403


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://127.0.0.1:8710", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_other_origins_are_refused(origin: str, code: int) -> None:
    browser = client()
    browser.get(f"/?token={TOKEN}")
    assert browser.get("/", origin=origin).code == code


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS"])
def test_nothing_but_reading_is_answered(method: str) -> None:
    browser = client()
    browser.get(f"/?token={TOKEN}")
    assert browser.get("/", method).code == 405


def test_each_answer_forbids_scripts_of_others() -> None:
    browser = client()
    answers = [browser.get("/"), browser.get(f"/?token={TOKEN}"), browser.get("/")]
    for answered in answers:
        assert HEADERS.items() <= answered.headers.items()
