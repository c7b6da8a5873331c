"""Preflight: checks of every node before a run starts on a cluster, and of this machine alone."""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hooks.errors import describe_error
from orchestrator.cluster.findings import Node, NodeFinding, check_nodes
from orchestrator.cluster.probe import Facts, NodeAnswers, collect_facts, probe_node
from orchestrator.engines.ray_connection import Ray, choose_address
from orchestrator.engines.ray_environment import read_environment
from orchestrator.engines.resources import Resources
from orchestrator.errors import StorageError, UsageError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.process.streams import print_line
from orchestrator.storage import Storage
from orchestrator.units import format_count

ANSWER_TIMEOUT_S = 120.0
"""Time limit for the answer of a node, which starts a process and imports the experiment."""


@dataclass(frozen=True)
class Preflight:
    """Answers of the nodes, and the findings about them."""

    driver: Facts
    nodes: list[Node]
    findings: list[NodeFinding]
    storage: str
    seconds: float

    @property
    def errors(self) -> list[NodeFinding]:
        """The findings that prevent a run."""
        return [finding for finding in self.findings if finding.level == "error"]

    def raise_errors(self) -> None:
        """Raise UsageError with all findings if one is an error."""
        if self.errors:
            lines = "\n".join(map(str, self.findings))
            raise UsageError(f"{lines}\nNothing was started. To start anyway: --skip-preflight")


def check(storage: str, ray: Any = None, experiment: Experiment | None = None) -> Preflight:
    """Check the nodes of the cluster that `ray` has joined, or this machine alone, and what an
    experiment needs.

    Raises UsageError if this machine itself cannot write the storage.
    """
    start = time.monotonic()
    driver = collect_facts()
    required = Resources.required_by(experiment.workers) if experiment else Resources({})
    available = Resources(ray.cluster_resources() if ray else {})
    with _write_driver_file(storage) as folder:
        if ray:
            # A relative folder is relative to the driver, whatever a worker's current folder is.
            location = Storage(storage).location
            needs_gpus = "GPU" in required.amounts
            nodes = _examine_nodes(ray, location, folder, experiment, needs_gpus=needs_gpus)
        else:
            answers = probe_node(storage, folder, "here")
            nodes = [Node("this machine", answers, offered_gpus=driver.gpus)]

    shown = str(Storage(storage))
    findings = check_nodes(driver, nodes, shown, required, available)
    return Preflight(driver, nodes, findings, shown, time.monotonic() - start)


@contextmanager
def preflight(
    address: str | None, storage: str, experiment: Experiment, *, skip: bool = False
) -> Iterator[None]:
    """Join the cluster for a run, and check it first; raises UsageError for errors.

    Does nothing if neither an address nor RAY_ADDRESS is given.
    """
    if skip or choose_address(address) is None:
        yield
        return
    with Ray(address, environment=read_environment(experiment.environment)) as ray:
        result = check(storage, ray, experiment)
        result.raise_errors()
        for finding in result.findings:
            print_line(str(finding))
        nodes = format_count(len(result.nodes), "node")
        print_line(f"preflight: {nodes} passed in {result.seconds:.1f} s")
        yield


@contextmanager
def _write_driver_file(location: str) -> Iterator[str]:
    """Write a file that every node should see; yield its folder, which is removed at the end."""
    storage = Storage(location)
    storage.reach()
    is_new = storage.local is not None and not storage.exists()
    folder = f".preflight-{uuid.uuid4().hex[:8]}"
    try:
        storage.write(f"{folder}/driver", b"driver")
    except (OSError, StorageError) as error:
        raise UsageError(f"storage {storage} cannot be written from here: {error}") from error
    try:
        yield folder
    finally:
        storage.delete(folder)
        if is_new and storage.local is not None and not os.listdir(storage.local):
            storage.local.rmdir()


def _examine_nodes(
    ray: Any, location: str, folder: str, experiment: Experiment | None, *, needs_gpus: bool
) -> list[Node]:
    """Examine all nodes concurrently, each in a process that ends afterwards."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = {str(node["NodeID"]): node for node in ray.nodes() if node["Alive"]}
    task = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(probe_node)
    source = experiment and experiment.source
    pending = {}
    for node in alive:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        pinned = task.options(scheduling_strategy=there)
        pending[node] = pinned.remote(location, folder, node, source, needs_gpus)
    calls = [*pending.values()]
    ready, _ = ray.wait(calls, num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)

    nodes = []
    for node, entries in alive.items():
        answers, silence = _get_answers(ray, pending[node], ready)
        name = f"{entries['NodeManagerHostname']} ({entries['NodeManagerAddress']})"
        gpus = float(entries["Resources"].get("GPU", 0))
        nodes.append(Node(name, answers, silence=silence, offered_gpus=gpus))
    return nodes


def _get_answers(
    ray: Any, call: Any, ready: Sequence[Any]
) -> tuple[NodeAnswers | None, str | None]:
    """Return the answers of a node if its call is ready, or else why there are none."""
    if call not in ready:
        ray.cancel(call, force=True)
        return None, f"no answer within {ANSWER_TIMEOUT_S:g} s"
    try:
        return ray.get(call), None
    # The node's own error, of any type, is the last line of Ray's message.
    except Exception as error:
        return None, describe_error(error).strip().splitlines()[-1]
