"""Tries wheels.txt: imports and trains with nothing else installed but torch and NumPy, as on a
machine with a GPU and no network.

python -m benchmarks.gpu.wheels
"""

import subprocess
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LIST = Path(__file__).with_name("wheels.txt")
BESIDE_TORCH = frozenset({"hookyard", "numpy", "setuptools"})
"""What stands where torch does, and this project itself."""
WITH_A_GPU = frozenset({"nvidia-ml-py"})
"""What only a machine with a GPU imports (device_stats)."""
PACKAGES = ("benchmarks.gpu", "tests.gpu")


def listed() -> set[str]:
    """The distributions of the list."""
    lines = LIST.read_text().splitlines()
    return {
        canonicalize_name(Requirement(line).name)
        for line in lines
        if line and not line.startswith("#")
    }


def required(names: set[str]) -> set[str]:
    """Return the requirements of distributions, and their requirements in turn."""
    result: set[str] = set()
    waiting = [*names]
    while waiting:
        try:
            wanted = [Requirement(text) for text in requires(waiting.pop()) or []]
        except PackageNotFoundError:
            continue
        more = {
            canonicalize_name(entry.name)
            for entry in wanted
            if not entry.marker or entry.marker.evaluate({"extra": ""})
        } - result
        result |= more
        waiting += more
    return result


class Only(PathFinder):
    """Finds no package of another distribution than some, as if nothing else were installed."""

    hidden: ClassVar[set[str]] = set()

    @classmethod
    def hide_others(cls, distributions: set[str]) -> None:
        """Let Python find only this list of installed modules from now on."""
        modules = packages_distributions().items()
        cls.hidden = {
            name
            for name, owners in modules
            if not distributions & {*map(canonicalize_name, owners)}
        }
        sys.meta_path = [cls if finder is PathFinder else finder for finder in sys.meta_path]

    @classmethod
    def find_spec(cls, fullname: str, *where: Any) -> Any:
        return (
            None
            if fullname.partition(".")[0] in cls.hidden
            else PathFinder.find_spec(fullname, *where)
        )


def try_list() -> None:
    """Import all parts and tests, and train with default hooks, in this process; print the listed
    modules that were not imported."""
    there = listed()
    Only.hide_others(there | {"torch"} | required({"torch"}) | BESIDE_TORCH)
    for package in PACKAGES:
        for module in iter_modules(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    import torch

    from benchmarks.gpu.part import Device
    from benchmarks.gpu.workloads import Numbers, Workload, hookyard

    workload = Workload(
        Numbers,
        Device(torch.device("cpu")),
        batch=4,
        steps=2,
        settings={"optimizer": {"type": "SGD", "lr": 0.1}},
    )
    hookyard(workload, 1, lambda: None, hooks={"tensorboard": {}, "checkpoint": {}})
    of_module = packages_distributions()
    used: set[str] = {
        canonicalize_name(entry)
        for name in {name.partition(".")[0] for name in sys.modules}
        for entry in of_module.get(name, ())
    }
    print(*sorted(there - used - required(used & there) - WITH_A_GPU))


def problem() -> str | None:
    """Describe the mistake in the list."""
    command = [
        sys.executable,
        "-c",
        f"from {__spec__.name if __spec__ else __name__} import try_list; try_list()",
    ]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"with {LIST.name} alone it fails: {tried.stderr.strip().splitlines()[-1]}"
    unused = tried.stdout.splitlines()[-1]
    return f"nothing imports {unused}, which {LIST.name} has" if unused else None


if __name__ == "__main__":
    result = problem()
    print(result or f"{LIST.name} lists exactly the imported modules")
    sys.exit(result is not None)
