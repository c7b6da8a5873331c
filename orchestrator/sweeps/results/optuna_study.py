"""A sweep as a study of Optuna, for optuna-dashboard and Optuna's own plots."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.load import make_experiment_from_source
from orchestrator.experiment.sections.search import EXTRA
from orchestrator.storage import without_credentials
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.search.optuna_space import make_distribution
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_record import TrialRecord

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_PLAIN = (bool, int, float, str, type(None))
"""Values that Optuna stores as they are."""


def export_study(sweep: Sweep, url: str) -> int:
    """Write the ended trials of a sweep as a new study of its name, and return their number.

    Mappings and lists among the values become JSON. A value outside the space, such as a seed or
    one that a population has changed, becomes an attribute.

    Args:
        sweep: The sweep.
        url: Storage of Optuna, such as `sqlite:///study.db`.

    Raises:
        UsageError: If Optuna is missing, the storage cannot be opened, or has such a study.
    """
    if find_spec("optuna") is None:
        raise UsageError(f"an export needs the package optuna: {EXTRA}")
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    shown = without_credentials(url)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            study_name=sweep.name,
            storage=url,
            directions=[
                "maximize" if mode == "max" else "minimize" for _, mode in sweep.objectives
            ],
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(
            f"{shown} has a study '{sweep.name}' already; name another file, or delete it:"
            f" optuna delete-study --storage {shown} --study-name {sweep.name}"
        ) from None
    except (SQLAlchemyError, ValueError, ImportError) as error:
        raise UsageError(f"Optuna cannot open {shown}: {without_credentials(str(error))}") from None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([metric for metric, _ in sweep.objectives])
    records = sweep.records()
    trials = _TrialMaker(sweep)
    ended = [
        trials.make(record, record.get_leader(records))
        for record in records.values()
        if isinstance(record, TrialRecord) and record.has_ended
    ]
    study.add_trials(ended)
    return len(ended)


class _TrialMaker:
    """Maker of Optuna's trials from those of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        settings = make_experiment_from_source(sweep.folder.read_source()).sweep
        assert settings is not None
        self._sweep = sweep
        self._metrics = [metric for metric, _ in sweep.objectives]
        self._constraints = Constraints(sweep.constraints)
        self._space = settings.space
        self._distributions = {}
        for path, domain in settings.space.items():
            categories = list(dict.fromkeys(map(_make_plain, domain.values)))
            self._distributions[path] = make_distribution(domain, categories)

    def make(self, record: TrialRecord, leader: TrialRecord | DamagedFile | None) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        cells = make_measured_cells(record, leader)
        values: list[Any] = [record.best.get(metric) for metric in self._metrics]
        has_failed = record.status == "failed" or not all(map(_is_finite, values))
        params = {}
        attributes = {name: value for name, value in cells.items() if _is_storable(value)}
        attributes |= {"trial": record.name, "status": record.status}
        for path, value in record.values.items():
            if path in self._space and value in self._space[path]:
                params[path] = _make_plain(value)
            else:
                attributes[path] = _make_plain(value)

        trial = create_trial(
            state=TrialState.FAIL if has_failed else TrialState.COMPLETE,
            values=None if has_failed else values,
            params=params,
            distributions={path: self._distributions[path] for path in params},
            user_attrs=attributes,
            intermediate_values=self._make_curve(record),
            constraints=None if has_failed else self._measure_excesses(cells),
        )
        trial.datetime_start = _parse_time(record.started)
        trial.datetime_complete = _parse_time(record.ended or record.started)
        return trial

    def _make_curve(self, record: TrialRecord) -> dict[int, float]:
        """Return the metric of each report; Optuna knows no curve of several metrics."""
        if len(self._metrics) > 1:
            return {}
        return dict(enumerate(record.compared.get(self._metrics[0], ()), start=1))

    def _measure_excesses(self, cells: Mapping[str, Any]) -> dict[str, float] | None:
        excesses = dict(zip(self._sweep.constraints, self._constraints.measure(cells), strict=True))
        return excesses or None


def _make_plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else json.dumps(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_storable(value: Any) -> bool:
    return isinstance(value, str) or _is_finite(value)


def _parse_time(moment: str) -> datetime:
    """Return a local time without zone, as Optuna has it."""
    return datetime.fromisoformat(moment).astimezone().replace(tzinfo=None)
