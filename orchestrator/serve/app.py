"""The live page: its addresses, and what they answer."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import resources

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.errors import HookyardError, UsageError
from orchestrator.report import outline
from orchestrator.report.comparison import outline_comparison
from orchestrator.report.markup import Content, Markup, concatenate, element
from orchestrator.report.page import CHARTS, SCRIPT, STYLE, Page, read_resource
from orchestrator.serve.access import Access
from orchestrator.serve.live_runs import LivePages, LiveRuns
from orchestrator.serve.log import render_log
from orchestrator.serve.run_list import Selection, make_run_link, outline_runs
from orchestrator.storage.read_only import ReadOnlyStorage

_LIVE = "live.js"
_LIVE_STYLE = "live.css"
_TO_LIST = element("a", "All runs", href="/")


def make_app(storage: ReadOnlyStorage, token: str, host: str) -> Starlette:
    """Make the application. `host` is the name or address that it listens to.

    Each answer to a page is made in a thread, so that several can be made at once.
    """
    site = _Site(storage)
    return Starlette(
        routes=[
            Route("/", site.list_runs),
            Route("/runs/{path:path}", site.show_run),
            Route("/compare", site.compare),
            Route("/style.css", _serve_file(_read_styles(), "text/css")),
            Route("/charts.js", _serve_file(read_resource(CHARTS), "text/javascript")),
            Route("/script.js", _serve_file(_read_scripts(), "text/javascript")),
        ],
        middleware=[
            Middleware(Access, token=token, host=host),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
        exception_handlers={HookyardError: _answer_error},
    )


class _Site:
    def __init__(self, storage: ReadOnlyStorage) -> None:
        self._runs = LiveRuns(storage)
        self._pages = LivePages()

    def list_runs(self, request: Request) -> Response:
        selection = Selection.read(request.query_params)
        page = outline_runs(self._runs.read(), selection, str(self._runs.storage))
        html = self._render(page, [])
        return _respond(request, html)

    def show_run(self, request: Request) -> Response:
        path = request.path_params["path"]
        found = self._runs.find(path)
        if found is None:
            return _answer_missing(path)
        folder, signature = found

        def make() -> str:
            page = outline(folder)
            page = Page(page.name, page.header, [*page.sections, render_log(folder)])
            return self._render(page, _list_parents(path))

        return _respond(request, self._pages.get(path, signature, make))

    def compare(self, request: Request) -> Response:
        paths = request.query_params.getlist("run")
        found = [self._runs.find(path) for path in paths]
        for path, run in zip(paths, found, strict=True):
            if run is None:
                return _answer_missing(path)
        chosen = [run for run in found if run is not None]
        signature = " ".join(signature for _, signature in chosen)

        def make() -> str:
            page = outline_comparison([folder for folder, _ in chosen])
            links = [element("a", path, href=make_run_link(path)) for path in paths]
            return self._render(page, links)

        return _respond(request, self._pages.get(f"/compare {paths}", signature, make))

    def _render(self, page: Page, links: Sequence[Content]) -> str:
        return _render(page, [_TO_LIST, *links], self._runs.interval_s)


def _list_parents(path: str) -> list[Markup]:
    """Return links to the sweep of a trial, or to the run of an evaluation."""
    parts = path.split("/")
    parents = ["/".join(parts[:end]) for end in range(1, len(parts), 2)]
    return [element("a", parent, href=make_run_link(parent)) for parent in parents]


def _render(page: Page, links: Sequence[Content], every_s: float | None) -> str:
    """Make the document of a page, which asks for itself again every so many seconds."""
    head = [
        element("link", rel="icon", href="data:,"),
        element("link", rel="stylesheet", href="/style.css"),
    ]
    scripts = [element("script", src=f"/{name}", defer=True) for name in ("charts.js", "script.js")]
    return page.render(
        head, "Served by hookyard serve.", scripts, links=links, data_every_s=every_s
    )


def _respond(
    request: Request, text: str, media_type: str = "text/html", code: int = 200
) -> Response:
    """Answer with a text, or that it is the one which the browser has."""
    tag = f'W/"{sha256(text.encode()).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if code == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(text, code, headers, media_type)


def _serve_file(text: str, media_type: str) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return _respond(request, text, media_type)

    return answer


def _read_styles() -> str:
    return f"{read_resource(STYLE)}\n{_read_own(_LIVE_STYLE)}"


def _read_scripts() -> str:
    return f"{read_resource(SCRIPT)}\n{_read_own(_LIVE)}"


def _read_own(name: str) -> str:
    return resources.files("orchestrator.serve").joinpath(name).read_text()


def _answer_missing(path: str) -> Response:
    return _answer_without_page(404, "No such run", path)


def _answer_error(request: Request, error: Exception) -> Response:
    code = 400 if isinstance(error, UsageError) else 500
    return _answer_without_page(code, "This cannot be shown", str(error))


def _answer_without_page(code: int, title: str, text: str) -> Response:
    header = concatenate([element("h1", title), element("pre", text, tabindex=0)])
    html = _render(Page(title, header, []), [_TO_LIST], None)
    return Response(html, code, media_type="text/html")
