"""An S3 server that takes its time: moto's, in a process of its own, with 30 ms added to each
request, which are counted."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

DELAY_S = 0.03
BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def slow_s3(
    filled_from: Path | None = None, delay_s: float = DELAY_S
) -> Iterator[Callable[[], int]]:
    """Within it `s3://bucket` is on that server, with the files of a folder in it. Yields what says
    how many requests there were since it was asked last."""
    processes = get_context("spawn")
    count, port = processes.Value("q", 0), processes.Value("i", 0)
    server = processes.Process(target=_serve, args=(count, port, filled_from, delay_s), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    os.environ |= {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.value}"}
    seen = 0

    def count_requests() -> int:
        nonlocal seen
        before, seen = seen, count.value
        return seen - before

    try:
        yield count_requests
    finally:
        server.terminate()
        server.join()


def _serve(count: Any, port: Any, filled_from: Path | None, delay_s: float) -> None:
    from moto.s3.models import s3_backends
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    store = s3_backends["123456789012"]["global"]
    store.create_bucket(BUCKET, "us-east-1")
    if filled_from:
        for file in filter(Path.is_file, sorted(filled_from.rglob("*"))):
            store.put_object(BUCKET, str(file.relative_to(filled_from)), file.read_bytes())
    application = DomainDispatcherApplication(create_backend_app)

    def slowly(environment: Any, start: Any) -> Any:
        with count.get_lock():
            count.value += 1
        time.sleep(delay_s)
        return application(environment, start)

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *arguments: Any) -> None:
            """Nothing."""

    server = make_server("127.0.0.1", 0, slowly, threaded=True, request_handler=Silent)
    port.value = server.port
    server.serve_forever()
