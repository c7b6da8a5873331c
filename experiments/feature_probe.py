"""Quality of features: nearest neighbours, and a linear classifier of few labels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from experiments.classifiers import (
    classify_by_neighbours,
    draw_of_each_class,
    fit_logistic_regression,
)
from hooks.hook import Hook, Priority
from hooks.import_path import import_callable
from hooks.metrics.names import list_phases
from hooks.model.eval_mode import evaluating
from hooks.self_supervised.shared.batch_sizes import gather_rows
from hooks.self_supervised.shared.momentum_teacher import find_encoder
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

DRAWS = 5
"""Number of draws of the few labels; their mean accuracy counts."""


@dataclass
class FeatureProbe(Hook):
    """Quality of an encoder's features at each validation, by nearest neighbours and a linear
    classifier.

        feature_probe: {type: "experiments.feature_probe:FeatureProbe", data: "study.data:plain"}

    Adds `val/knn_accuracy`: the `neighbours` most similar training samples vote with weight
    exp(cosine / temperature). Adds `val/linear_accuracy`: logistic regression on standardized
    features of `labels_per_class` random training samples of each class, the same in all runs. For
    comparison, `val/pixels/...` uses the inputs, and `val/untrained/...` the encoder before
    training. Other weights of the validation, such as EMA's, give `val/ema/...`. With several val
    sets, these stand under the first.

    Each rank encodes its share of the data; training features are gathered, so all ranks get the
    same values. Source: "Unsupervised Feature Learning via Non-Parametric Instance Discrimination"
    (Wu et al., 2018), DINO's eval_knn.
    """

    data: str
    """`module:callable`, annotated to return a Mapping: datasets `train` and `val` of samples
    (input, label), without augmentation."""
    encoder: str = "encoder.backbone"
    """Part of the model that returns features: inputs (B, ...) to (B, ...)."""
    neighbours: Annotated[int, Ge(1)] = 20
    """Number of training samples that vote."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """Decay of a vote with distance."""
    labels_per_class: Annotated[int, Ge(1)] = 10
    """Number of labels per class for the linear classifier."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Samples to encode at once."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.HIGH
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # `Mapping` is only a bound here.
        build = import_callable(self.data, "data", Mapping)  # type: ignore[type-abstract]
        self._build: Callable[[], Mapping[str, Any]] = build
        self._datasets: Mapping[str, Any] = {}
        self._baselines: dict[str, float] | None = None

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            fsdp="it runs a part of the model over each rank's own batches", custom_loop=NEEDS_MODEL
        )

    def on_start(self, state: State) -> None:
        with evaluating(state):  # user code may draw random numbers
            self._datasets = self._build()
        encoder = find_encoder(state.module, self.encoder)
        if self._baselines is None and state.step == 0:
            pixels = self._measure(nn.Identity(), state)
            untrained = self._measure(encoder, state)
            self._baselines = {f"pixels/{name}": value for name, value in pixels.items()}
            self._baselines |= {f"untrained/{name}": value for name, value in untrained.items()}

    def on_phase_end(self, state: State) -> None:
        if state.phase != (list_phases("val", state.loaders) or ["val"])[0]:
            return
        values: dict[str, float] = {}
        for label, weights in state.evaluations.items():
            with weights(state):
                measured = self._measure(find_encoder(state.module, self.encoder), state)
            prefix = f"{label}/" if label else ""
            values |= {f"{prefix}{name}": value for name, value in measured.items()}
        values |= self._baselines or {}
        state.metrics |= {f"{state.phase}/{name}": value for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": self._baselines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._baselines = state["baselines"]

    @torch.no_grad()
    def _measure(self, encoder: nn.Module, state: State) -> dict[str, float]:
        with evaluating(state):
            bank, labels = self._gather("train", encoder, state)
            features, targets = self._encode("val", encoder, state)
        classes = int(labels.max()) + 1
        nearest = classify_by_neighbours(
            bank, labels, features, classes, self.neighbours, self.temperature
        )
        counts = [nearest == targets]

        mean = bank.mean(0)
        deviation = bank.std(0) + 1e-6
        for draw in range(DRAWS):
            few = draw_of_each_class(labels, self.labels_per_class, draw)
            classify = fit_logistic_regression((bank[few] - mean) / deviation, labels[few], classes)
            counts.append(classify((features - mean) / deviation).argmax(1) == targets)

        sums = [float(count.sum()) for count in counts]
        total = torch.tensor([len(targets), *sums], dtype=torch.float64, device=state.device)
        if state.world_size > 1:
            dist.all_reduce(total)
        size, knn, *linear = total.tolist()
        return {"knn_accuracy": knn / size, "linear_accuracy": sum(linear) / (DRAWS * size)}

    def _encode(self, phase: str, encoder: nn.Module, state: State) -> tuple[Tensor, Tensor]:
        """Return features (n, D) and labels (n,) of every world_size-th sample."""
        dataset = self._datasets[phase]
        share = Subset(dataset, range(state.rank, len(dataset), state.world_size))
        loader = DataLoader(share, self.batch_size)
        pairs = [
            (encoder(inputs.to(state.device)).flatten(1).float(), labels.to(state.device))
            for inputs, labels in loader
        ]
        features, labels = zip(*pairs, strict=True)
        return torch.cat(features), torch.cat(labels)

    def _gather(self, phase: str, encoder: nn.Module, state: State) -> tuple[Tensor, Tensor]:
        """Return features and labels of all samples in the order of the dataset."""
        features, labels = self._encode(phase, encoder, state)
        length = len(self._datasets[phase])
        shares = [torch.arange(rank, length, state.world_size) for rank in range(state.world_size)]
        back = torch.cat(shares).argsort().to(state.device)
        sizes = [len(share) for share in shares]
        return gather_rows(features, sizes)[back], gather_rows(labels, sizes)[back]
