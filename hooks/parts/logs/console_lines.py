"""How the console words its lines: its own way, or as another system does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from hooks.parts.logs.eta import iterations_to_come
from hooks.state import State

_MOST_RATES = 4
"""Learning rates that are listed; more are a range."""


@dataclass(frozen=True)
class Moment:
    """What a line may tell."""

    state: State
    iteration: int
    """Iterations done in the phase."""
    rates: Mapping[str, float]
    """Learning rates by column, `lr`, `lr_1` ...; none outside training."""
    values: Mapping[str, float]
    """The statistics to show, by name."""
    times: Mapping[str, float]
    """`step_s` and `data_wait_s`, where they are known."""
    memory: float | None = None
    """Bytes."""
    eta: float | None = None
    """Seconds to the end of training."""
    metrics: Mapping[str, float] | None = None
    """The phase's own values, once it has ended."""
    seconds: float = 0.0
    """What the phase took, once it has ended."""
    first: bool = False
    """Whether this is the first line of the process."""

    @property
    def epoch(self) -> int:
        """The epoch under way, or the last one after its end."""
        return self.state.epoch - self.state.epoch_completed

    @property
    def by_epoch(self) -> bool:
        """Whether the run's length is told in epochs."""
        return self.state.max_steps is None

    @property
    def iterations(self) -> int:
        """Training iterations of the whole run; those done where it has no end."""
        return self.state.iteration + (iterations_to_come(self.state) or 0)


@dataclass(frozen=True)
class Format:
    """The wording of lines within a phase, and of those at its end."""

    within: Callable[[Moment], str]
    end: Callable[[Moment], list[str]]
    short_epochs: bool = False
    """Whether training that is shorter than the interval has a line of its own besides the one of its end."""
    evaluation: bool = False
    """Whether there are lines within val and test, too."""

    def wants_rest(self, state: State, interval: int) -> bool:
        """Whether what is left as a phase ends has a line."""
        return state.phase_length > interval or (self.short_epochs and state.phase == "train")


def iterations_done(state: State) -> int:
    """Iterations of the phase that ends; in training the counter begins again where that completed the epoch."""
    return state.phase_length if state.phase == "train" and state.epoch_completed else state.phase_iteration


# Hookyard


def _within(moment: Moment) -> str:
    state = moment.state
    parts = [f"{state.phase}  epoch {moment.epoch}  {moment.iteration}/{state.phase_length}"]
    if state.max_steps is not None and state.phase == "train":
        parts.append(f"step {state.step}/{state.max_steps}")
    if moment.rates:
        parts.append(f"lr {_rates(moment, '.4g')}")
    parts += [f"{name} {value:.4g}" for name, value in moment.values.items()]
    if "step_s" in moment.times:
        waiting = f" (data {1000 * moment.times['data_wait_s']:.1f} ms)" if "data_wait_s" in moment.times else ""
        parts.append(f"{1000 * moment.times['step_s']:.1f} ms{waiting}")
    if moment.eta is not None:
        parts.append(f"eta {_clock(moment.eta)}")
    if moment.memory is not None:
        parts.append(f"memory {moment.memory / 2**20:.0f} MiB")
    return "  ".join(parts)


def _end(moment: Moment) -> list[str]:
    metrics = [f"{name} {value:.4g}" for name, value in (moment.metrics or {}).items()]
    return ["  ".join([f"{moment.state.phase} done  epoch {moment.epoch}", *metrics, f"in {moment.seconds:.1f} s"])]


# MMEngine's LogProcessor


def _mmengine_header(moment: Moment) -> str:
    """`Epoch(train)  [3][ 5/10]  `, epochs from 1; `Iter(train) [  50/2000]  ` where the run's length is in steps."""
    state = moment.state
    length = state.phase_length
    if not moment.by_epoch and state.phase == "train":
        return f"Iter(train) [{state.iteration:>{len(str(moment.iterations))}}/{moment.iterations}]  "
    place = f"[{moment.iteration:>{len(str(length))}}/{length}]  "
    if state.phase == "test" or not moment.by_epoch:
        return f"{'Epoch' if moment.by_epoch else 'Iter'}({state.phase}) {place}"
    epoch = f"[{moment.epoch + 1}]"
    return f"Epoch({state.phase}){epoch:>{len(str(state.max_epochs or 0)) + 3}}{place}"


def _mmengine(moment: Moment) -> str:
    rates = " ".join(f"{name}: {rate:.4e}" for name, rate in _distinct(moment.rates).items())
    parts = [f"eta: {_clock(moment.eta)}"] if moment.eta is not None else []
    parts += [f"{name}: {moment.times[column]:.4f}" for name, column in (("time", "step_s"), ("data_time", "data_wait_s")) if column in moment.times]
    if moment.memory is not None:
        parts.append(f"memory: {moment.memory / 2**20:.0f}")
    parts += [f"{name}: {value:.4f}" for name, value in moment.values.items()]
    return f"{_mmengine_header(moment)}{rates}  {'  '.join(parts)}"


def _mmengine_end(moment: Moment) -> list[str]:
    """Its training has no line of this kind: it computes no metrics there."""
    if moment.state.phase == "train":
        return []
    parts = [f"{name}: {value:.4f}" for name, value in (moment.metrics or {}).items()]
    if moment.iteration:
        parts.append(f"time: {moment.seconds / moment.iteration:.4f}")
    return [f"{_mmengine_header(moment)}  {'  '.join(parts)}"]


# VISSL's LogLossLrEtaHook and LogLossMetricsCheckpointHook


def _vissl(moment: Moment) -> str:
    state = moment.state
    data: dict[str, str | int] = {"iter": state.iteration}
    if moment.rates:
        distinct = _distinct(moment.rates)
        data["lr"] = _rates(moment, ".4g") if len(distinct) == 1 else f"[{_rates(moment, '.4g')}]"
    data |= {name: f"{value:.5g}" for name, value in moment.values.items()}
    data["btime(ms)"] = int(1000 * moment.times.get("step_s", 0.0))
    if moment.eta is not None:
        data["eta"] = _clock(moment.eta)
    data["peak_mem(M)"] = int(moment.memory / 2**20) if moment.memory is not None else -1
    if moment.first:
        data["max_iterations"] = moment.iterations
    return f"Rank: {state.rank}; [ep: {moment.epoch}] " + " ".join(f"{name}: {value};" for name, value in data.items())


def _vissl_end(moment: Moment) -> list[str]:
    state = moment.state
    return [f"Rank: {state.rank}, name: {state.phase}_{name}, value: {value:.5g}" for name, value in (moment.metrics or {}).items()]


# ClassyVision's LossLrMeterLoggingHook


def _classy(moment: Moment) -> str:
    return _classy_line("Approximate meters", moment, moment.values)


def _classy_end(moment: Moment) -> list[str]:
    return [_classy_line("Synced meters", moment, moment.metrics or {})]


def _classy_line(prefix: str, moment: Moment, values: Mapping[str, float]) -> str:
    state = moment.state
    done = 100 * moment.iteration / state.phase_length if state.phase_length else 100.0
    loss = f", loss: {values['loss']:.4f}" if "loss" in values else ""
    meters = ", ".join(f"{name}={value:.6f}" for name, value in values.items() if name != "loss")
    rates = f", lr: {_rates(moment, '.4g')}" if moment.rates else ""
    return (
        f"{prefix}: [{state.rank}] {state.phase} phase {moment.epoch} ({done:.2f}% done){loss}, "
        f"meters: [{meters}]{rates}, processed batches: {moment.iteration}"
    )


# iMIX's CommonMetricLoggerHook


def _imix(moment: Moment) -> str:
    state = moment.state
    place = f"current_iter:{state.iteration} \t max_iter:{moment.iterations} \t "
    if moment.by_epoch:
        place = f"epoch:{moment.epoch} \t {moment.iteration}/{state.phase_length} \t {place}max_epoch:{state.max_epochs} \t "
    losses = "  ".join(f"{name}: {value:.3f}" for name, value in moment.values.items())
    rate = _rates(moment, ".6e") if moment.rates else "N/A"
    waiting = f"{moment.times['data_wait_s']:.4f}" if "data_wait_s" in moment.times else ""
    seconds = f"{moment.times['step_s']:.4f}" if "step_s" in moment.times else ""
    memory = f"max used memory:{moment.memory / 2**20:.0f}M" if moment.memory is not None else ""
    eta = _clock(moment.eta) if moment.eta is not None else ""
    return f"{place}{losses} \t lr:{rate} \tload_data_time:{waiting} \t iter_time:{seconds} \t {memory} \t eta:{eta}"


FORMATS: Mapping[str, Format] = {
    "hookyard": Format(_within, _end, evaluation=True),
    "mmengine": Format(_mmengine, _mmengine_end, short_epochs=True, evaluation=True),
    "vissl": Format(_vissl, _vissl_end, short_epochs=True),
    "classy": Format(_classy, _classy_end),
    "imix": Format(_imix, _end, short_epochs=True),
}


def _distinct(rates: Mapping[str, float]) -> dict[str, float]:
    """The first column of each rate."""
    first: dict[float, str] = {}
    for name, rate in rates.items():
        first.setdefault(rate, name)
    return {name: rate for rate, name in first.items()}


def _rates(moment: Moment, style: str) -> str:
    """The learning rates that differ; many are a range."""
    rates = list(dict.fromkeys(moment.rates.values()))
    if len(rates) > _MOST_RATES:
        return f"{min(rates):{style}} to {max(rates):{style}}"
    return ", ".join(f"{rate:{style}}" for rate in rates)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
