from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset

from hooks.loader_parts import describe_attributes, find_parts, find_parts_with_epoch


class Part(list[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_parts_with_epoch_are_found_in_datasets_transforms_and_collators() -> None:
    parts = {
        name: Part([1, 2, 3, 4][: 4 if name == "named" else 2])
        for name in ("concatenated", "other", "named", "transform", "collator")
    }
    rows: Any = SimpleNamespace(transform=SimpleNamespace(transforms=[str, parts["transform"]]))
    stacked = StackDataset(
        whole=parts["named"], other=ConcatDataset([parts["concatenated"], parts["other"]])
    )
    loader = DataLoader(Subset(stacked, [0]), collate_fn=parts["collator"])  # type: ignore[arg-type]
    assert {id(part) for part in find_parts_with_epoch(loader, rows)} == {
        id(part) for part in parts.values()
    }


class Wrapper(Dataset[Any]):
    """Calls the dataset in it by a name of its own."""

    def __init__(self, wrapped: Any) -> None:
        self.base = wrapped
        self.size = 4


class Curriculum(Dataset[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_dataset_in_a_wrapper_is_found_by_any_name() -> None:
    inner = Curriculum()
    assert find_parts_with_epoch(Wrapper(Subset(Wrapper(inner), [0]))) == [inner]


@pytest.mark.parametrize("container", [list, tuple, lambda parts: dict(enumerate(parts))])
def test_datasets_in_a_container_of_a_wrapper_are_found_by_any_name(container: Any) -> None:
    inner = [Curriculum(), Curriculum()]
    assert find_parts_with_epoch(Wrapper(container(inner))) == inner


@pytest.mark.parametrize("container", [list, lambda parts: SimpleNamespace(transforms=parts)])
def test_transforms_in_the_pipeline_of_a_dataset_are_found(container: Any) -> None:
    """MMEngine's datasets have a Compose of that name, and others a plain list."""
    transform = Curriculum()
    dataset = Wrapper(None)
    dataset.pipeline = container([str, transform])
    assert find_parts_with_epoch(DataLoader(dataset)) == [transform]


def test_attributes_differ_once_one_of_a_part_is_replaced_or_changed_in_place() -> None:
    inner = SimpleNamespace(
        difficulty=1,
        table=[1],
        levels={"blur": {"radius": 1}},
        scale=torch.ones(2),
        weights=np.ones(2),
        rows=[0] * 1000,
    )
    inner.levels["whole"] = inner.levels
    whole = SimpleNamespace(dataset=inner, transforms=[str, float])
    descriptions = [describe_attributes(find_parts(whole))]
    for change in (
        lambda: setattr(inner, "difficulty", 2),
        lambda: setattr(inner, "table", [2]),
        lambda: inner.table.append(3),
        lambda: inner.levels["blur"].update(radius=2),
        lambda: inner.scale.mul_(2),
        lambda: np.multiply(inner.weights, 2, out=inner.weights),
        lambda: inner.rows.pop(),
        lambda: whole.transforms.pop(),
    ):
        assert describe_attributes(find_parts(whole)) == descriptions[-1]
        change()
        descriptions.append(describe_attributes(find_parts(whole)))
        assert descriptions[-1] != descriptions[-2]
