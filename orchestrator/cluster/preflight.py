"""Preflight: checks of every node before a run starts on a cluster. Driver."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hooks.error_text import describe_error
from orchestrator.cluster.checks import Finding, Level, Node, check_nodes
from orchestrator.cluster.probe import Facts, Probe
from orchestrator.config.sections.experiment import Experiment
from orchestrator.engines.orphans import describe_orphans, find_orphans
from orchestrator.engines.ray_environment import Ray, Resources, chosen_address, environment_values
from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage
from orchestrator.terminal.display import say

ANSWER_S = 60.0
"""Time limit for an answer; the first one waits for a process to start."""


@dataclass(frozen=True)
class Preflight:
    """Answers of the nodes, and the findings about them."""

    driver: Facts
    nodes: list[Node]
    findings: list[Finding]
    storage: str
    seconds: float

    @property
    def errors(self) -> list[Finding]:
        """The findings that prevent a run."""
        return [finding for finding in self.findings if finding.level is Level.ERROR]

    def raise_errors(self) -> None:
        """Raise UsageError with all findings if one is an error."""
        if self.errors:
            lines = "\n".join(map(str, self.findings))
            raise UsageError(f"{lines}\nNothing was started. To start anyway: --skip-preflight")


def check_this_machine(storage: str) -> Preflight:
    """Check this machine alone, without Ray."""
    began, probe = time.monotonic(), Probe()
    facts = probe.facts()
    with _driver_file(storage) as folder:
        problem = probe.check_storage(storage, folder, "here")
    node = Node("this machine", facts, offered_gpus=facts.gpus, storage=problem)
    shown = str(Storage(storage))
    findings = check_nodes(facts, [node], shown, Resources(0), Resources(0))
    if left := find_orphans():
        advice = f"Nothing uses them: kill {' '.join(str(orphan.pid) for orphan in left)}"
        findings.append(Finding(Level.WARNING, node.name, describe_orphans(left), advice))
    return Preflight(facts, [node], findings, shown, time.monotonic() - began)


def check_cluster(ray: Any, storage: str, experiment: Experiment | None = None) -> Preflight:
    """Check the nodes of the cluster that Ray has joined, also for the needs of an experiment.

    Raises UsageError if this machine itself cannot write the storage.
    """
    began, driver = time.monotonic(), Probe().facts()
    asked = Resources.required_by(experiment.workers) if experiment else Resources(0)
    alive = [node for node in ray.nodes() if node["Alive"]]
    # A relative folder is relative to the driver, in whatever folder a worker is.
    with _driver_file(storage) as folder:
        nodes = _Probes(ray, alive).check(Storage(storage).location, folder, experiment, asked)
    shown = str(Storage(storage))
    findings = check_nodes(driver, nodes, shown, asked, Resources.of(ray.cluster_resources()))
    return Preflight(driver, nodes, findings, shown, time.monotonic() - began)


@contextmanager
def preflight(address: str | None, storage: str, experiment: Experiment, *, skip: bool = False) -> Iterator[None]:
    """Join the cluster for a run, and check it first; raises UsageError for errors.

    Does nothing if neither an address nor RAY_ADDRESS is given.
    """
    if skip or chosen_address(address) is None:
        yield
        return
    with Ray(address, environment=environment_values(experiment.environment)) as ray:
        result = check_cluster(ray, storage, experiment)
        result.raise_errors()
        for finding in result.findings:
            say(str(finding))
        say(f"preflight: {len(result.nodes)} node{'s'[: len(result.nodes) > 1]} passed in {result.seconds:.1f} s")
        yield


@contextmanager
def _driver_file(location: str) -> Iterator[str]:
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


class _Probes:
    """A probe on each node. All are asked at once."""

    def __init__(self, ray: Any, alive: Sequence[dict[str, Any]]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._nodes = {str(node["NodeID"]): node for node in alive}
        self._probes = {
            node: (
                ray.remote(Probe)
                .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
                .remote()
            )
            for node in self._nodes
        }
        self._silent: dict[str, str] = {}
        """Nodes that did not answer, and why."""

    def check(self, location: str, folder: str, experiment: Experiment | None, asked: Resources) -> list[Node]:
        """Return the answers of every node."""
        facts = self._ask(lambda node, probe: probe.facts.remote())
        clocks = self._measure_clocks()
        storages = self._ask(lambda node, probe: probe.check_storage.remote(location, folder, node))
        imports = self._ask(lambda _, probe: probe.check_imports.remote(experiment.source)) if experiment else {}
        gpus = self._ask(lambda node, probe: probe.check_gpus.remote()) if asked.gpus else {}
        neighbours, connections = self._connect()
        for probe in self._probes.values():
            self._ray.kill(probe)
        return [
            Node(self._name(node), silence=self._silent[node])
            if node in self._silent
            else Node(
                self._name(node),
                facts[node],
                offered_gpus=float(self._nodes[node]["Resources"].get("GPU", 0)),
                clock_offset_s=clocks[node][0],
                clock_error_s=clocks[node][1],
                imports=imports.get(node),
                gpus=gpus.get(node) if facts[node].gpus else None,
                storage=storages[node],
                neighbour=self._name(neighbours[node]) if node in neighbours else None,
                connection=connections.get(node),
            )
            for node in self._probes
        ]

    def _name(self, node: str) -> str:
        """Return host and address of a node, with a part of its id where nodes share a host."""
        places = [(other["NodeManagerHostname"], other["NodeManagerAddress"]) for other in self._nodes.values()]
        host, address = self._nodes[node]["NodeManagerHostname"], self._nodes[node]["NodeManagerAddress"]
        return f"{host} ({address})" if places.count((host, address)) == 1 else f"{host} ({address}, {node[:6]})"

    def _ask(self, question: Callable[[str, Any], Any]) -> dict[str, Any]:
        """Return the answers by node; nodes that fail or take too long are not asked again."""
        asked = {question(node, probe): node for node, probe in self._probes.items() if node not in self._silent}
        ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        answers = {}
        for answer in ready:
            try:
                answers[asked[answer]] = self._ray.get(answer)
            except Exception as error:  # of any kind; the node's own error is the last line of Ray's
                self._silent[asked[answer]] = describe_error(error).strip().splitlines()[-1]
        self._silent.update({asked[answer]: f"no answer within {ANSWER_S:g} s" for answer in late})
        return answers

    def _measure_clocks(self) -> dict[str, tuple[float, float]]:
        """Return each clock's offset from this one, and half of the shortest round trip as its error."""
        trips: dict[str, tuple[float, float]] = {}
        for _ in range(3):
            asked = time.time()
            answers = self._ask(lambda node, probe: probe.clock.remote())
            back = time.time()
            for node, there in answers.items():
                trips[node] = min(trips.get(node, (math.inf, 0.0)), ((back - asked) / 2, there - (asked + back) / 2))
        return {node: (offset, error) for node, (error, offset) in trips.items()}

    def _connect(self) -> tuple[dict[str, str], dict[str, str | None]]:
        """Connect the nodes in a ring; return each node's neighbour, and what went wrong."""
        ports = self._ask(lambda node, probe: probe.listen.remote())
        if len(ports) < 2:
            return {}, {}
        ring = list(ports)
        after = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
        hosts = {node: str(self._nodes[node]["NodeManagerAddress"]) for node in ring}
        return after, self._ask(
            lambda node, probe: probe.check_connection.remote(hosts[after[node]], ports[after[node]])
        )
