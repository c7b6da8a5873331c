import base64
import hashlib
import re

from orchestrator.report.document import make_file
from orchestrator.report.markup import element
from orchestrator.report.page import Page, Section


def made() -> str:
    sections = [
        Section("one", "One", element("p", "y"), "why"),
        Section("two", "Two", "none <b>"),
    ]
    return make_file(Page("a <b>", element("h1", "x"), sections), "runs/<a>", "now")


def test_page_allows_only_its_own_scripts_and_fetches_nothing() -> None:
    html = made()
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[0].replace(
        "&#x27;", "'"
    )
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert len(scripts) == 2
    assert dict(rule.split(" ", 1) for rule in policy.split("; ")) == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in digests),
    }
    assert not re.findall(
        r"""(?:src|href)=["'](?!data:|#)|@import|url\(""", html.split("<script>")[0]
    )
