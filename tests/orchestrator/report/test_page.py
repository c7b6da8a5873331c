import base64
import hashlib
import re

from orchestrator.report import page
from orchestrator.report.markup import element
from tests.orchestrator.report.reading import parsed


def made() -> str:
    sections = [
        page.Section("one", "One", element("p", "y"), "why"),
        page.Section("two", "Two", "none <b>"),
    ]
    return page.make_file(page.Page("a <b>", element("h1", "x"), sections), "runs/<a>", "now")


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


def test_sections_have_headings_and_links() -> None:
    body = re.findall(r"(<main.*</main>)", made(), re.DOTALL)[0]
    sections = list(parsed(body).iter("section"))
    assert [section.get("id") for section in sections] == ["one", "two"]
    for section in sections:
        heading = section.find("h2")
        assert heading is not None
        assert heading.get("id") == section.get("aria-labelledby")
    assert re.findall(r'<a href="#(one|two)">', made()) == ["one", "two"]
