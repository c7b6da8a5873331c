from typing import Any

import numpy as np

from orchestrator.loop.step.columns import make_columns, make_numbers


def test_columns_have_the_numbers_of_their_names() -> None:
    def row(iteration: int, step: int, samples: int, size: int, loss: float, lr: float) -> Any:
        times = (10.0, 10.0 + iteration)
        return make_numbers(iteration, step, samples, size, (loss, lr), times)

    numbers = np.array([row(5, 2, 40, 8, 0.5, 0.1), row(6, 3, 44, 4, 0.25, 0.2)])
    layout = make_columns(("loss", "lr"), {"step_s": lambda times: times[:, 1] - times[:, 0]})
    assert {name: compute(numbers).tolist() for name, compute in layout.items()} == {
        "iteration": [5, 6],
        "step": [2, 3],
        "samples": [40, 44],
        "batch_size": [8, 4],
        "loss": [0.5, 0.25],
        "lr": [0.1, 0.2],
        "step_s": [5.0, 6.0],
    }
