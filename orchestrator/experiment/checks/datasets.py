"""The kinds of data that a task may return for a phase."""

from types import CodeType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

HUGGING_FACE = "datasets.iterable_dataset.IterableDataset"
SHARD_THEMSELVES = {
    HUGGING_FACE,
    "litdata.streaming.dataset.StreamingDataset",
    "streaming.base.dataset.StreamingDataset",
    "webdataset.pipeline.DataPipeline",
}
"""Classes that shard their samples among ranks and loader processes."""
_RANK_QUERIES = {"get_rank", "get_world_size", "get_worker_info"}


def is_map_style(dataset: Any) -> bool:
    """Return whether this is a map-style dataset."""
    return (
        not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
        and hasattr(dataset, "__getitem__")
    )


def is_loader(data: Any) -> bool:
    """Return whether an object yields batches, not samples as a dataset does."""
    return isinstance(data, DataLoader) or (
        not isinstance(data, IterableDataset) and has_state(data)
    )


def is_ray_dataset(dataset: Any) -> bool:
    """Return whether this is a dataset of Ray Data, which the engine turns into loaders."""
    return any(base.__module__.startswith("ray.data") for base in type(dataset).__mro__)


def is_hugging_face(dataset: Any) -> bool:
    """Return whether this is an iterable dataset of Hugging Face."""
    return HUGGING_FACE in _list_classes(dataset)


def has_state(source: Any) -> bool:
    """Return whether a source of samples or batches can save its position."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def get_length(dataset: Any) -> int | None:
    """Return the length of a dataset, or None: a class may have a `__len__` that raises."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def shards_itself(dataset: Any) -> bool:
    """Return whether a dataset shards itself, as its class declares, or as its library does."""
    answer = getattr(dataset, "shards_itself", None)
    if answer is None:
        return not _list_classes(dataset).isdisjoint(SHARD_THEMSELVES)
    return bool(answer)


def find_rank_queries(dataset: Any) -> list[str]:
    """Return the functions by which a dataset may shard itself, unless it is known whether it
    does."""
    if hasattr(dataset, "shards_itself") or shards_itself(dataset):
        return []
    names = _list_names(getattr(type(dataset).__iter__, "__code__", None))
    return sorted(names & _RANK_QUERIES)


def _list_classes(dataset: Any) -> set[str]:
    return {f"{base.__module__}.{base.__qualname__}" for base in type(dataset).__mro__}


def _list_names(code: CodeType | None) -> set[str]:
    """Return the names in a function's code, and in its inner functions."""
    if code is None:
        return set()
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _list_names(inner)
    return names
