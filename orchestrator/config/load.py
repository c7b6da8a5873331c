"""From a YAML file to a checked experiment, and back. Runs in the driver; a worker gets the plain data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from orchestrator.config.changes import unchangeable
from orchestrator.config.components import MadeHook, check_optimizer, make_hooks, make_task
from orchestrator.config.experiment import Component, Experiment, wrong_length
from orchestrator.config.imports import did_you_mean, extend_import_path
from orchestrator.config.overrides import apply_overrides, set_path
from orchestrator.config.parameters import check, plain
from orchestrator.config.reader import Document, dump_yaml, join, read_yaml
from orchestrator.config.space import Domain, overlaps, surroundings, wrong_domain, wrong_mutations
from orchestrator.config.sweep import Sweep
from orchestrator.errors import ConfigError, Problem

P = ParamSpec("P")
R = TypeVar("R")


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment or a sweep over one, lays `key=value` overrides over it, and checks everything.

    Imports the task and the hooks it names, from the folder of the file or the current one where they are not
    installed. Raises ConfigError with every problem found, each with its place.
    """
    overrides = tuple(overrides)
    document, folders = _read(Path(path))
    apply_overrides(document, overrides)
    experiment = _checked(document, [*folders, Path.cwd()])
    experiment._source = str(Path(path).absolute()), overrides
    return experiment


def experiment_from_dict(data: Mapping[str, Any], import_paths: Iterable[str | Path] = ()) -> Experiment:
    """An experiment from plain data, such as `resolved` gives; raises ConfigError."""
    return _checked(Document(_plain(data)), import_paths)


def with_overrides(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment of one trial: `{"hooks.ema.decay": 0.9}` laid over it and checked again; raises ConfigError."""
    data = _single(experiment._written or resolved(experiment))
    for path, value in values.items():
        set_path(data, path, _plain(value))
    if experiment.sweep is not None:
        _report_rows(data, experiment.sweep.row_stats)
    return _checked(Document(data), experiment.import_paths)


def _report_rows(data: dict[str, Any], statistics: Sequence[str]) -> None:
    """Switches on the hook that reports statistics of rows, where trials are judged by some."""
    if statistics:
        hooks = data.setdefault("hooks", {})
        entry = hooks.get("row_stats") or {}
        given = entry.get("report", []) if isinstance(entry, dict) else []
        hooks["row_stats"] = {**(entry if isinstance(entry, dict) else {}), "report": list(dict.fromkeys([*given, *statistics]))}


def resolved(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain data with every default filled in."""
    return experiment.model_dump(mode="json")


def to_yaml(experiment: Experiment) -> str:
    """The resolved experiment as YAML, ready to be run again."""
    return dump_yaml(resolved(experiment))


# Reading


def _read(path: Path) -> tuple[Document, list[Path]]:
    """A file laid over its base, and the folders of both."""
    document = read_yaml(path)
    folder = path.resolve().parent
    base = document.data.pop("base", None)
    if base is None:
        return document, [folder]
    if not isinstance(base, str):
        raise ConfigError([document.locate(Problem("base", f"must be a file, got {base!r}"))])
    file = path.parent / base
    if not file.is_file():
        raise ConfigError([document.locate(Problem("base", f"there is no file {file}"))])
    below = read_yaml(file)
    if "base" in below.data:
        raise ConfigError([below.locate(Problem("base", f"a base has no base of its own; {path} builds on this file"))])
    return _laid_over(below, document), [folder, file.resolve().parent]


def _laid_over(below: Document, above: Document) -> Document:
    merged = Document(copy.deepcopy(below.data), dict(below.places), [*below.problems, *above.problems])
    _merge(merged, merged.data, above.data, "")
    merged.places.update(above.places)
    return merged


def _merge(document: Document, below: dict[str, Any], above: Mapping[str, Any], path: str) -> None:
    """Mappings are merged; anything else replaces, and so does a mapping that names another `type`."""
    for key, value in above.items():
        inner = join(path, key)
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("type", old.get("type")) == old.get("type"):
            _merge(document, old, value, inner)
            continue
        below[key] = value
        document.forget(inner)


# Checking


def _checked(document: Document, import_paths: Iterable[str | Path]) -> Experiment:
    folders = tuple(dict.fromkeys(str(Path(folder).absolute()) for folder in import_paths))
    extend_import_path(folders)
    problems = list(document.problems)
    experiment = _attempt(problems, _experiment, document.data)
    problems.extend([*_sweep_problems(document.data, problems), *_change_problems(document.data, problems)])
    if problems or experiment is None:
        raise ConfigError(sorted((document.locate(problem) for problem in problems), key=_in_order))
    experiment._import_paths = folders
    experiment._written = copy.deepcopy(document.data)
    return experiment


def _in_order(problem: Problem) -> tuple[str, int]:
    return problem.file or "", problem.line or 0


def _attempt(problems: list[Problem], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The function's value, or None once its problems are noted."""
    try:
        return function(*args, **kwargs)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _experiment(data: dict[str, Any]) -> Experiment:
    """The experiment with its components filled in; raises ConfigError with the problems of all of them."""
    data = _with_default_optimizer({key: value for key, value in data.items() if value is not None})
    problems: list[Problem] = []
    experiment = _attempt(problems, check, Experiment, data, "")
    if experiment is None and all(problem.path for problem in problems):
        message = wrong_length(data.get("epochs"), data.get("steps"))
        problems.extend([Problem("", message)] if message else [])
    filled = {**data, **_components(data, problems)}
    if problems:
        raise ConfigError(problems)
    return check(Experiment, filled, "")


def _components(data: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Task arguments and hooks in full; checks whatever has the right shape, so that one mistake hides no other."""
    name, arguments, entries = data.get("task"), data.get("task_args", {}), data.get("hooks", {})
    made = None
    if isinstance(name, str) and isinstance(arguments, dict):
        made = _attempt(problems, make_task, name, arguments)
    task, task_args = made or (None, arguments)
    hooks: dict[str, MadeHook | None] = {}
    if isinstance(entries, dict):
        hooks = _attempt(problems, make_hooks, entries, task.required_hooks() if task else {}) or {}
    problems.extend(_sharding_problems(data, hooks))
    _attempt(problems, _check_optimizer, data)
    return {"task_args": task_args, "hooks": {name: one.entry if one else None for name, one in hooks.items()}}


def _sharding_problems(data: Mapping[str, Any], hooks: Mapping[str, MadeHook | None]) -> list[Problem]:
    """What cannot be where ranks share out the model among them."""
    workers = data.get("workers")
    if not isinstance(workers, dict) or workers.get("strategy") != "fsdp":
        return []
    reasons = {f"hooks.{name}": one.hook.needs_whole_model() for name, one in hooks.items() if one}
    if data.get("precision") == "fp16":
        reasons["precision"] = "each rank would scale the loss by its own shards' overflows; bf16 needs no scale"
    if data.get("channels_last"):
        reasons["channels_last"] = "torch shards only parameters whose elements lie in their own order"
    if data.get("compile"):
        reasons["compile"] = "torch's compiler stops at the calls that gather each unit's parameters"
    return [Problem(path, f"cannot be with workers.strategy: fsdp: {reason}") for path, reason in reasons.items() if reason]


def _with_default_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """Arguments without a `type` are those of the default optimizer: `optimizer: {lr: 0.5}`."""
    given = data.get("optimizer")
    if not isinstance(given, dict) or "type" in given:
        return data
    default: Component = Experiment.model_fields["optimizer"].default
    return {**data, "optimizer": {"type": default.type, **default.arguments, **given}}


def _check_optimizer(data: Mapping[str, Any]) -> None:
    default = Experiment.model_fields["optimizer"].default
    optimizer, scheduler = (_component(data.get(key)) for key in ("optimizer", "scheduler"))
    check_optimizer(optimizer or default, scheduler)


def _component(value: Any) -> Component | None:
    shaped = isinstance(value, dict) and isinstance(value.get("type"), str)
    return check(Component, value, "") if shaped else None


# Sweeping


def _single(data: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({key: value for key, value in data.items() if key != "sweep"})


def _sweep_problems(data: Mapping[str, Any], known: Sequence[Problem]) -> list[Problem]:
    """What is wrong with a sweep beyond its own model: domains, points, and what a population would change."""
    given = data.get("sweep")
    sweep = _attempt([], check, Sweep, given, "sweep") if isinstance(given, dict) else None
    if sweep is None:
        return []
    workers = data.get("workers")
    if sweep.engine == "gang" and isinstance(workers, dict) and isinstance(workers.get("count"), list):
        return [Problem("workers.count", f"a gang has one number of ranks, got {workers['count']}; engine: train takes a range")]
    wrong = {name: wrong_domain(name, domain, sweep.search) for name, domain in sweep.space.items()}
    problems = [problem for problem in wrong.values() if problem]
    sound = sweep.model_copy(update={"space": {name: sweep.space[name] for name, problem in wrong.items() if not problem}})
    problems.extend(overlaps(sound) or ([] if problems else wrong_mutations(sweep)))
    for name in sound.space:
        domain = Domain.of(sweep.space[name])
        problems.extend(_refused(name, domain, domain.candidates(), join("sweep.space", name), sound, data, known))
    for index, point in enumerate(sweep.points if len(sound.space) == len(sweep.space) else ()):
        problems.extend(_wrong_point(point, f"sweep.points.{index}", sweep, data, known))
    return problems


def _wrong_point(
    point: Mapping[str, Any], path: str, sweep: Sweep, data: Mapping[str, Any], known: Sequence[Problem]
) -> list[Problem]:
    problems = []
    for name, value in point.items():
        if name not in sweep.space:
            hint = did_you_mean(name, sweep.space)
            problems.append(Problem(join(path, name), "is no path of the space", suggestion=hint))
            continue
        domain = Domain.of(sweep.space[name])
        if not domain.holds(value):
            problems.append(Problem(join(path, name), f"is not in its domain {sweep.space[name]}, got {value!r}"))
            continue
        problems.extend(_refused(name, domain, [value], join(path, name), sweep, data, known))
    return problems


def _refused(
    name: str,
    domain: Domain,
    values: Iterable[Any],
    path: str,
    sweep: Sweep,
    data: Mapping[str, Any],
    known: Sequence[Problem],
) -> list[Problem]:
    """Tries values of one path in the experiment they are for, one at a time; tells each problem once, at `path`.

    A path inside a choice is tried with each value of the choice that leaves it to be drawn.
    """
    problems: dict[str, Problem] = {}
    for value in values:
        for around in surroundings(name, sweep.space):
            for problem in _problems_with({**around, name: value}, _single(data)):
                if problem not in known and _is_about(problem.path, name, list(sweep.space)):
                    message = _as_told_of(domain, _at(name, problem))
                    problems.setdefault(message, replace(problem, path=path, message=message))
    return list(problems.values())


def _as_told_of(domain: Domain, message: str) -> str:
    if domain.kind != "normal" or len(domain.values) == 4:
        return message
    bound = message.partition(", got")[0]
    return f"a normal distribution has no ends, and this {bound}; clip it: {{normal: [mean, sd, low, high]}}"


def _at(name: str, problem: Problem) -> str:
    """The problem's message as seen from `name`: with the rest of its path where it lies below or beside."""
    above = not problem.path or name.startswith(f"{problem.path}.")
    place = "" if above else problem.path.removeprefix(name).removeprefix(".")
    return f"{place}: {problem.message}" if place else problem.message


def _problems_with(values: Mapping[str, Any], data: dict[str, Any]) -> Sequence[Problem]:
    try:
        for name, value in values.items():
            set_path(data, name, copy.deepcopy(value))
        _experiment(data)
    except ConfigError as error:
        return error.problems
    return ()


def _is_about(path: str, name: str, names: Sequence[str]) -> bool:
    """Whether a problem at `path` is due to the value of `name` alone.

    A problem of the whole component (a check across its fields) counts only where nothing else of it is swept: other
    values of the others may make it right.
    """
    if path == name or path.startswith(f"{name}.") or not path:
        return True
    component = _component_of(name)
    return _component_of(path) == component and sum(_component_of(other) == component for other in names) == 1


def _component_of(path: str) -> str:
    keys = path.split(".")
    return ".".join(keys[:2]) if keys[0] == "hooks" else keys[0]


# Changes


def _change_problems(data: Mapping[str, Any], known: Sequence[Problem]) -> list[Problem]:
    """Tries each change of a run under way in the experiment, and refuses what cannot change in flight."""
    given = data.get("changes")
    if known or not given:
        return []
    experiment = _experiment(_single(data))
    problems = []
    for index, change in enumerate(experiment.changes):
        for name, value in change.set.items():
            path = f"changes.{index}.set.{name}"
            message = unchangeable(name, experiment)
            if message:
                problems.append(Problem(path, message))
                continue
            found = _problems_with({name: value}, _single(data))
            problems.extend(Problem(path, _at(name, problem), suggestion=problem.suggestion) for problem in found)
    return problems


def _plain(value: Any) -> Any:
    """A copy that holds only what YAML can say."""
    try:
        return json.loads(json.dumps(value, default=plain))
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("", f"is no plain data: {error}")]) from None
