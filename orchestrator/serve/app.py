"""The live page: its addresses and their responses."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import resources
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.disk.media import read_media
from orchestrator.errors import HookyardError, UsageError
from orchestrator.report import outline
from orchestrator.report.comparison import outline_comparison
from orchestrator.report.document import CHARTS, SCRIPT, STYLE, read_resource
from orchestrator.report.markup import concatenate, element
from orchestrator.report.page import Page
from orchestrator.serve.access import Access
from orchestrator.serve.live_pages import LivePages
from orchestrator.serve.live_runs import LiveRuns, NoSuchRun
from orchestrator.serve.log import render_log
from orchestrator.serve.run_list import make_run_link, outline_runs
from orchestrator.serve.selection import Selection
from orchestrator.storage.read_only import ReadOnlyStorage


def make_app(storage: ReadOnlyStorage, token: str, host: str) -> Starlette:
    """Make the application. `host` is the name or address that it listens to.

    Each answer to a page is made in a thread, so that several can be made at once.
    """
    site = _Site(storage)
    style = read_resource(STYLE) + _read_own("live.css")
    script = read_resource(SCRIPT) + _read_own("live.js")
    return Starlette(
        routes=[
            Route("/", site.list_runs),
            Route("/runs/{path:path}", site.show_run),
            Route("/media", site.show_image),
            Route("/compare", site.compare),
            Route("/style.css", _serve_file(style, "text/css")),
            Route("/charts.js", _serve_file(read_resource(CHARTS), "text/javascript")),
            Route("/script.js", _serve_file(script, "text/javascript")),
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
        table, version = self._runs.read()
        selection = Selection.read(request.query_params)

        def make() -> str:
            return self._render(outline_runs(table, selection, str(self._runs.storage)))

        return _respond(request, self._pages.get(selection.make_link(), version, make))

    def show_run(self, request: Request) -> Response:
        path = request.path_params["path"]
        folder, signature = self._runs.find(path)

        def make() -> str:
            page = outline(folder, lambda file: f"/media?{urlencode({'run': path, 'file': file})}")
            page = Page(page.name, page.header, [*page.sections, render_log(folder)])
            return self._render(page, _list_parents(path))

        return _respond(request, self._pages.get(make_run_link(path), signature, make))

    def show_image(self, request: Request) -> Response:
        """Answer with an image that the index of a run names, and with no other file."""
        folder, _ = self._runs.find(request.query_params.get("run", ""))
        file = request.query_params.get("file", "")
        if file in {entry.file for entry in read_media(folder.storage) if entry.is_image}:
            with suppress(FileNotFoundError):
                return _respond(request, folder.storage.read(file), "image/png")
        raise NoSuchRun(f"{folder} has no image {file}")

    def compare(self, request: Request) -> Response:
        paths = [*dict.fromkeys(request.query_params.getlist("run"))]
        runs = [self._runs.find(path) for path in paths]

        def make() -> str:
            return self._render(outline_comparison([folder for folder, _ in runs]), paths)

        signature = " ".join(signature for _, signature in runs)
        return _respond(request, self._pages.get(f"/compare {paths}", signature, make))

    def _render(self, page: Page, paths: Sequence[str] = ()) -> str:
        return _render(page, paths, self._runs.interval_s)


def _list_parents(path: str) -> list[str]:
    """Return the path of a trial's sweep, or of an evaluation's run."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts), 2)]


def _render(page: Page, paths: Sequence[str] = (), every_s: float | None = None) -> str:
    """Make the document of a page, which reloads every `every_s` seconds, with links to the runs at
    `paths`."""
    head = [
        element("link", rel="icon", href="data:,"),
        element("link", rel="stylesheet", href="/style.css"),
    ]
    # Only sections have charts.
    names = ["charts.js", "script.js"] if page.sections else ["script.js"]
    scripts = [element("script", src=f"/{name}", defer=True) for name in names]
    links = [element("a", "All runs", href="/")]
    links += [element("a", path, href=make_run_link(path)) for path in paths]
    return page.render(
        head, "Served by hookyard serve.", scripts, links=links, data_every_s=every_s
    )


def _respond(request: Request, content: str | bytes, media_type: str = "text/html") -> Response:
    """Answer with a text or an image, or that it is the one which the browser has."""
    data = content.encode() if isinstance(content, str) else content
    tag = f'W/"{sha256(data).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, media_type)


def _serve_file(text: str, media_type: str) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return _respond(request, text, media_type)

    return answer


def _read_own(name: str) -> str:
    return resources.files("orchestrator.serve").joinpath(name).read_text()


def _find_status_code(error: Exception) -> int:
    if isinstance(error, NoSuchRun):
        return 404
    return 400 if isinstance(error, UsageError) else 500


def _answer_error(request: Request, error: Exception) -> Response:
    """Respond with the error in an address, or in the files of a run."""
    code = _find_status_code(error)
    title = "This cannot be shown"
    header = concatenate([element("h1", title), element("pre", str(error), tabindex=0)])
    return Response(_render(Page(title, header, [])), code, media_type="text/html")
