"""`hookyard doctor` without a run: nodes that are unfit for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import FAILED
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.units import format_bytes, format_count

if TYPE_CHECKING:
    from orchestrator.cluster.findings import Node
    from orchestrator.cluster.preflight import Preflight


def check_nodes(address: str | None, storage: str, as_json: bool) -> None:
    """Check this machine or the nodes of a cluster, and print the result; exit with 1 if one is
    unfit."""
    from orchestrator.cluster.preflight import check
    from orchestrator.engines.ray_connection import Ray, choose_address

    if choose_address(address) is None:
        preflight = check(storage)
    else:
        with Ray(address) as ray:
            preflight = check(storage, ray)
    if as_json:
        print_json(preflight)
    else:
        _print_nodes(preflight)
    if preflight.errors:
        raise typer.Exit(FAILED)


def _print_nodes(preflight: Preflight) -> None:
    packages = list(preflight.driver.versions)
    columns = ("node", *packages, "gpus", "disk free", "shared memory", "storage")
    print_table(columns, [_make_row(node, len(columns)) for node in preflight.nodes])
    for finding in preflight.findings:
        echo(str(finding))

    count = format_count(len(preflight.nodes), "node")
    result = "not ready" if preflight.errors else "ready"
    echo(
        f"{count} and storage {preflight.storage}: {result} (checked in {preflight.seconds:.1f} s)",
        err=True,
    )


def _make_row(node: Node, columns: int) -> Sequence[str]:
    """Return the cells of a node; dashes for one that did not answer."""
    if node.answers is None:
        return (node.name, *["-"] * (columns - 1))

    facts = node.answers.facts
    shared_memory = "-"
    if facts.shared_memory_free_bytes is not None:
        shared_memory = format_bytes(facts.shared_memory_free_bytes)
    return (
        node.name,
        *facts.versions.values(),
        f"{node.offered_gpus:g} of {facts.gpus}",
        format_bytes(facts.disk_free_bytes),
        shared_memory,
        "failed" if node.answers.storage else "ok",
    )
