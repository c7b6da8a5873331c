"""Preflight: checks of every node before a run starts on a cluster, and of this machine alone."""

import hashlib
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hooks
from hooks.errors import describe_error
from orchestrator.disk.provenance import installed_version
from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    choose_address,
    format_amount,
    read_environment,
    with_unit,
)
from orchestrator.errors import HookyardError, StorageError, UsageError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.terminal.display import print_line
from orchestrator.units import format_bytes

_PACKAGES = (Path(hooks.__file__).parent, Path(__file__).parents[1])
"""Folders of the project's code."""
ANSWER_TIMEOUT_S = 120.0
"""Time limit for the answer of a node, which starts a process and imports the experiment."""
MIN_DISK_BYTES = 5 * 2**30
MIN_SHARED_MEMORY_BYTES = 2**30
"""Free bytes below which a node gets a warning."""
Level = Literal["error", "warning"]
"""Severity of a finding; a run does not start after an error."""


@dataclass(frozen=True)
class Facts:
    """Versions and resources of a machine."""

    versions: dict[str, str]
    """Versions of python, torch and ray, and as `project` Hookyard's version with a hash of its
    code."""
    gpus: int
    disk_free_bytes: int
    """Free bytes for temporary files."""
    shared_memory_free_bytes: int | None
    """None without /dev/shm."""


@dataclass(frozen=True)
class Answers:
    """Facts about a machine, and the problem that each check found, or None."""

    facts: Facts
    storage: str | None = None
    imports: str | None = None
    gpus: str | None = None


@dataclass(frozen=True)
class Finding:
    """A problem of one node, and what to do about it."""

    level: Level
    node: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.node}: {self.what}. {self.advice}"


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    name: str
    answers: Answers | None = None
    silence: str | None = None
    """Reason why it did not answer."""
    offered_gpus: float = 0
    """GPUs that Ray may assign there."""


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
    start, driver = time.monotonic(), collect_facts()
    required = Resources.required_by(experiment.workers) if experiment else Resources({})
    available = Resources(ray.cluster_resources() if ray else {})
    with _write_driver_file(storage) as folder:
        if ray:
            # A relative folder is relative to the driver, whatever a worker's current folder is.
            location = Storage(storage).location
            nodes = _examine_nodes(
                ray, location, folder, experiment, needs_gpus="GPU" in required.amounts
            )
        else:
            nodes = [
                Node("this machine", probe_node(storage, folder, "here"), offered_gpus=driver.gpus)
            ]
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
        print_line(
            f"preflight: {len(result.nodes)} node{'s'[: len(result.nodes) > 1]} passed in {result.seconds:.1f} s"
        )
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
    pending = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            location, folder, node, source, needs_gpus
        ): node
        for node in alive
    }
    ready, late = ray.wait([*pending], num_returns=len(pending), timeout=ANSWER_TIMEOUT_S)
    answers = {}
    silence = {pending[answer]: f"no answer within {ANSWER_TIMEOUT_S:g} s" for answer in late}
    for answer in ready:
        try:
            answers[pending[answer]] = ray.get(answer)
        except (
            Exception
        ) as error:  # of any type; the node's own error is the last line of Ray's message
            silence[pending[answer]] = describe_error(error).strip().splitlines()[-1]
    for answer in late:
        ray.cancel(answer, force=True)
    return [
        Node(
            f"{entries['NodeManagerHostname']} ({entries['NodeManagerAddress']})",
            answers.get(node),
            silence=silence.get(node),
            offered_gpus=float(entries["Resources"].get("GPU", 0)),
        )
        for node, entries in alive.items()
    ]


# Checks of one machine, in the driver and as a Ray task on each node


def probe_node(
    location: str,
    folder: str,
    node: str,
    source: ExperimentSource | None = None,
    needs_gpus: bool = False,
) -> Answers:
    """Check this machine: the storage at a location, and what an experiment needs."""
    facts, imports, gpus = collect_facts(), None, None
    if needs_gpus and facts.gpus:
        import torch

        gpus = None if torch.cuda.is_available() else f"torch {torch.__version__} sees none of them"
    if source:
        from orchestrator.experiment.resolve import resolve

        try:
            resolve(source)
        except HookyardError as error:
            imports = str(error)
    return Answers(facts, _check_storage(location, folder, node), imports, gpus)


def collect_facts() -> Facts:
    shared = Path("/dev/shm")
    return Facts(
        {
            "python": platform.python_version(),
            **{name: installed_version(name) or "none" for name in ("torch", "ray")},
            "project": _read_project_version(),
        },
        len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        shutil.disk_usage(tempfile.gettempdir()).free,
        shutil.disk_usage(shared).free if shared.exists() else None,
    )


def _check_storage(location: str, folder: str, node: str) -> str | None:
    """Read the driver's file in the storage, and write one beside it."""
    try:
        storage = Storage(location)
        storage.reach()
        if storage.read(f"{folder}/driver") != b"driver":
            return "the driver's file has other content here"
        storage.write(f"{folder}/{node}", node)
    except FileNotFoundError:
        return "the driver's file is not there: this node has another folder of that name"
    except (HookyardError, OSError) as error:
        return str(error)
    return None


def _read_project_version() -> str:
    code = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted(package.rglob("*.py")):
            code.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return f"{installed_version('hookyard')}+{code.hexdigest()[:8]}"


# Findings, from the answers of the nodes


def check_nodes(
    driver: Facts, nodes: Sequence[Node], storage: str, required: Resources, available: Resources
) -> list[Finding]:
    """Return the findings, errors first. `available` are the resources of all nodes together."""
    findings = [*_check_resources(required, available)]
    for node in nodes:
        problems = _check_node(driver, node, storage, required)
        findings.extend(Finding(level, node.name, what, advice) for level, what, advice in problems)
    return sorted(findings, key=lambda finding: finding.level == "warning")


def _check_resources(required: Resources, available: Resources) -> Iterator[Finding]:
    short = [
        f"{format_amount(kind, want)} and has {format_amount(kind, have) if have else 'none'}"
        for kind, (want, have) in required.find_missing(available).items()
    ]
    if short:
        advice = "It waits until an autoscaler adds nodes; without one, use fewer workers or less for each"
        yield Finding("warning", "cluster", f"the run asks for {', and for '.join(short)}", advice)


def _check_node(
    driver: Facts, node: Node, storage: str, required: Resources
) -> Iterator[tuple[Level, str, str]]:
    """Yield level, text and advice of the findings about a node."""
    answers = node.answers
    if answers is None:
        advice = "Install the project there as it is here, or take the node out of the cluster"
        yield "error", f"did not answer: {node.silence}", advice
        return
    facts, gpus = answers.facts, with_unit(answers.facts.gpus, "GPU")
    for name, here in driver.versions.items():
        there = facts.versions[name]
        if there != here:
            # Pickles and compiled code do not survive another minor version of Python.
            is_patch = name == "python" and there.split(".")[:2] == here.split(".")[:2]
            advice = "Install the same everywhere: constraints.txt names every version"
            yield (
                "warning" if is_patch else "error",
                f"has {name} {there}, the driver {here}",
                advice,
            )
    if answers.imports:
        advice = (
            "Copy the code there under the same path, install it, or send it with hookyard submit"
        )
        yield "error", f"cannot import the experiment: {answers.imports}", advice
    if answers.storage:
        advice = "Use a storage that every node sees, such as s3://bucket/runs or a network folder, and its keys"
        yield "error", f"cannot read and write storage {storage}: {answers.storage}", advice
    if "GPU" in required.amounts and answers.gpus and node.offered_gpus:
        advice = "Install the torch build for its driver, or start Ray there with --num-gpus=0"
        yield "error", f"has {gpus} and {answers.gpus}", advice
    if facts.gpus > node.offered_gpus:
        advice = "Start Ray there with --num-gpus, unless this is intended"
        yield "warning", f"has {gpus} and Ray offers {node.offered_gpus:g}", advice
    if facts.disk_free_bytes < MIN_DISK_BYTES:
        advice = "Ray and uploads need room for temporary files: free some, or set TMPDIR"
        yield "warning", f"has {format_bytes(facts.disk_free_bytes)} of disk left", advice
    shared = facts.shared_memory_free_bytes
    if shared is not None and shared < MIN_SHARED_MEMORY_BYTES:
        advice = "Data loaders and Ray use /dev/shm: give a container more (--shm-size, or a memory volume)"
        yield "warning", f"has {format_bytes(shared)} of shared memory left", advice
