"""A page as one file, which loads nothing and runs no scripts but its own."""

import base64
import hashlib
from importlib import resources

from orchestrator.report.markup import Markup, element
from orchestrator.report.page import Page

CHARTS = "plotly-cartesian.min.js"
"""plotly.js with the charts of two axes alone, a third of the whole: npm's package
plotly.js-cartesian-dist-min."""
SCRIPT = "script.js"
STYLE = "style.css"


def make_file(page: Page, path: str, made: str) -> str:
    """Make a document that loads nothing.

    Args:
        page: The content.
        path: Path of the run or sweep.
        made: Time of creation.
    """
    scripts = [read_resource(CHARTS), read_resource(SCRIPT)]
    hashes = " ".join(f"'{_compute_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {hashes}"
    )
    head = [
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("style", Markup(read_resource(STYLE))),
    ]
    footer = f"Made by hookyard report at {made} from {path}."
    return page.render(head, footer, [element("script", Markup(script)) for script in scripts])


def _compute_hash(script: str) -> str:
    """Return the hash by which the page's policy allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def read_resource(name: str) -> str:
    """Return the text of a script or a style sheet."""
    return resources.files("orchestrator.report").joinpath(name).read_text()
