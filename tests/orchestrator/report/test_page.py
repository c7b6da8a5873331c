import re

from orchestrator.report import page
from orchestrator.report.document import make_file
from orchestrator.report.markup import element
from tests.orchestrator.report.reading import parsed


def made() -> str:
    sections = [
        page.Section("one", "One", element("p", "y"), "why"),
        page.Section("two", "Two", "none <b>"),
    ]
    return make_file(page.Page("a <b>", element("h1", "x"), sections), "runs/<a>", "now")


def test_sections_have_headings_and_links() -> None:
    body = re.findall(r"(<main.*</main>)", made(), re.DOTALL)[0]
    sections = list(parsed(body).iter("section"))
    assert [section.get("id") for section in sections] == ["one", "two"]
    for section in sections:
        heading = section.find("h2")
        assert heading is not None
        assert heading.get("id") == section.get("aria-labelledby")
    assert re.findall(r'<a href="#(one|two)">', made()) == ["one", "two"]
