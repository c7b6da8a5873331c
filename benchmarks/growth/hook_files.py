"""Files of hooks on S3 by the number of reports: fixed files of 8 MiB, and one line more in a file
at each report."""

from collections.abc import Sequence
from typing import IO

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from orchestrator.disk.artifacts import open_artifacts
from orchestrator.storage import Storage
from orchestrator.storage.remote_files import RemoteFiles


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (10, 30, 100)
    sent: list[int] = []
    send = RemoteFiles.send

    def counted(self: RemoteFiles, file: IO[bytes], path: str) -> None:
        sent.append(file.seek(0, 2))
        send(self, file, path)

    RemoteFiles.send = counted
    costs: dict[str, list[float]] = {"requests": [], "bytes sent": [], "bytes there": []}
    for reports in sizes:
        with slow_s3(delay_s=0.001) as requests:
            artifacts = open_artifacts(Storage("s3://bucket/run"))
            for number in range(4):
                (artifacts.folder / f"export-{number}.pt").write_bytes(bytes(8 * 2**20))
            sent.clear()
            requests()
            for _ in range(reports):
                with (artifacts.folder / "scalars.jsonl").open("a") as file:
                    file.write("x" * 299 + "\n")
                artifacts.send()
            costs["requests"].append(float(requests()))
            costs["bytes sent"].append(float(sum(sent)))
            costs["bytes there"].append(
                float(sum(path.stat().st_size for path in artifacts.folder.iterdir()))
            )
            artifacts.close()
    RemoteFiles.send = send
    print_growth("files of hooks on S3", "reports", sizes, costs)
