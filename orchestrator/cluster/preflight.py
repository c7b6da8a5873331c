"""The preflight: asks every node what a run on it would meet, before there is one. Driver."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hooks.error_text import named_text
from orchestrator.cluster.checks import Finding, Level, Node, findings
from orchestrator.cluster.probe import Facts, Probe
from orchestrator.config.sections.experiment import Experiment
from orchestrator.engines.orphans import in_words, orphans
from orchestrator.engines.ray_environment import Ray, Resources, chosen_address, environment_values
from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage
from orchestrator.terminal.display import say

ANSWER_S = 60.0
"""How long nodes may take to answer; the first answer waits for a process to start and to import."""


@dataclass(frozen=True)
class Preflight:
    """What was asked and found."""

    driver: Facts
    nodes: list[Node]
    findings: list[Finding]
    storage: str
    seconds: float

    @property
    def errors(self) -> list[Finding]:
        """What ends a run before it begins."""
        return [finding for finding in self.findings if finding.level is Level.ERROR]

    def refuse(self) -> None:
        """Raises UsageError with everything that is wrong, where something is."""
        if self.errors:
            lines = "\n".join(map(str, self.findings))
            raise UsageError(f"{lines}\nNothing was started. To start it all the same: --skip-preflight")


def look_here(storage: str) -> Preflight:
    """A preflight of this machine alone, without Ray."""
    began, probe = time.monotonic(), Probe()
    facts = probe.facts()
    with _marked(storage) as folder:
        node = Node(
            "this machine", facts, offered_gpus=facts.gpus, storage=probe.wrong_with_storage(storage, folder, "here")
        )
    shown = str(Storage(storage))
    found = findings(facts, [node], shown, Resources(0), Resources(0))
    if left := orphans():
        found.append(
            Finding(
                Level.WARNING,
                node.name,
                in_words(left),
                f"Nothing uses them: kill {' '.join(str(one.pid) for one in left)}",
            )
        )
    return Preflight(facts, [node], found, shown, time.monotonic() - began)


def look_at_cluster(ray: Any, storage: str, experiment: Experiment | None = None) -> Preflight:
    """A preflight of the cluster that Ray has joined, with what an experiment asks for where one is given.

    Raises UsageError where this machine cannot write the storage itself.
    """
    began, facts = time.monotonic(), Probe().facts()
    asked = Resources.asked_by(experiment.workers) if experiment else Resources(0)
    alive = [node for node in ray.nodes() if node["Alive"]]
    # A relative folder means the driver's own, whatever folder a worker is in.
    with _marked(storage) as folder:
        nodes = _Gathering(ray, alive).nodes(Storage(storage).location, folder, experiment, asked)
    has = ray.cluster_resources()
    shown = str(Storage(storage))
    found = findings(facts, nodes, shown, asked, Resources.of(has))
    return Preflight(facts, nodes, found, shown, time.monotonic() - began)


@contextmanager
def _marked(location: str) -> Iterator[str]:
    """A folder in the storage with the driver's mark, gone again at the end."""
    storage = Storage(location)
    storage.reach()
    made = storage.local is not None and not storage.exists()
    folder = f".preflight-{uuid.uuid4().hex[:8]}"
    try:
        storage.write(f"{folder}/driver", b"driver")
    except (OSError, StorageError) as error:
        raise UsageError(f"storage {storage} cannot be written from here: {error}") from error
    try:
        yield folder
    finally:
        storage.delete(folder)
        if made and storage.local is not None and not os.listdir(storage.local):
            storage.local.rmdir()


class _Gathering:
    """A probe on each node, and what they answer; all are asked at once, and by their identity."""

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

    def _name(self, node: str) -> str:
        """As people know a node; several on one host get a part of their identity too."""
        names = [(known["NodeManagerHostname"], known["NodeManagerAddress"]) for known in self._nodes.values()]
        host, address = self._nodes[node]["NodeManagerHostname"], self._nodes[node]["NodeManagerAddress"]
        return f"{host} ({address})" if names.count((host, address)) == 1 else f"{host} ({address}, {node[:6]})"

    def nodes(self, location: str, folder: str, experiment: Experiment | None, asked: Resources) -> list[Node]:
        """Every node, as it answered."""
        facts = self._ask(lambda node, probe: probe.facts.remote())
        clocks = self._clocks()
        storages = self._ask(lambda node, probe: probe.wrong_with_storage.remote(location, folder, node))
        imports = self._imports(experiment) if experiment else {}
        gpus = self._ask(lambda node, probe: probe.wrong_with_gpus.remote()) if asked.gpus else {}
        neighbours, connections = self._connections()
        for probe in self._probes.values():
            self._ray.kill(probe)
        return [
            (
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
            )
            for node in self._probes
        ]

    def _ask(self, question: Callable[[str, Any], Any]) -> dict[str, Any]:
        """The answers of the nodes that gave one; the others are silent from now on."""
        asked = {question(node, probe): node for node, probe in self._talking().items()}
        ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        answers = {}
        for answer in ready:
            try:
                answers[asked[answer]] = self._ray.get(answer)
            except (
                Exception
            ) as error:  # whatever a node raises, the others are asked on; the last line of Ray's is the node's own
                self._silent[asked[answer]] = named_text(error).strip().splitlines()[-1]
        self._silent.update({asked[answer]: f"nothing came within {ANSWER_S:g} s" for answer in late})
        return answers

    def _talking(self) -> dict[str, Any]:
        return {node: probe for node, probe in self._probes.items() if node not in self._silent}

    def _clocks(self) -> dict[str, tuple[float, float]]:
        """How far each node's clock is ahead of this one, and how far that may be wrong: half of the shortest round
        trip."""
        trips: dict[str, tuple[float, float]] = {}
        for _ in range(3):
            asked = time.time()
            answers = self._ask(lambda node, probe: probe.clock.remote())
            back = time.time()
            for node, there in answers.items():
                trips[node] = min(trips.get(node, (math.inf, 0.0)), ((back - asked) / 2, there - (asked + back) / 2))
        return {node: (offset, error) for node, (error, offset) in trips.items()}

    def _imports(self, experiment: Experiment) -> dict[str, str | None]:
        from orchestrator.cluster.packages import needed_packages

        source, packages = experiment.source, needed_packages(experiment)
        return self._ask(lambda node, probe: probe.wrong_with_imports.remote(source, packages))

    def _connections(self) -> tuple[dict[str, str], dict[str, str | None]]:
        """Each node's next one in a ring, and why it cannot connect to that."""
        if len(self._talking()) < 2:
            return {}, {}
        ports = self._ask(lambda node, probe: probe.listen.remote())
        ring = list(ports)
        after = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
        hosts = {node: str(self._nodes[node]["NodeManagerAddress"]) for node in ring}
        return after, self._ask(
            lambda node, probe: probe.wrong_with_connecting.remote(hosts[after[node]], ports[after[node]])
        )


@contextmanager
def checked_cluster(address: str | None, storage: str, experiment: Experiment, *, skip: bool = False) -> Iterator[None]:
    """The cluster, joined for a run and looked at before it: raises UsageError where something is wrong there.

    Without an address, its own or RAY_ADDRESS, there is no cluster to look at, and nothing is joined.
    """
    if skip or chosen_address(address) is None:
        yield
        return
    with Ray(address, environment=environment_values(experiment.environment)) as ray:
        looked = look_at_cluster(ray, storage, experiment)
        looked.refuse()
        for finding in looked.findings:
            say(str(finding))
        say(
            f"preflight: {len(looked.nodes)} node{'s are' if len(looked.nodes) > 1 else ' is'} fit, looked at in"
            f" {looked.seconds:.1f} s"
        )
        yield
