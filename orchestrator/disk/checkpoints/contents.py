"""Loading what is in a checkpoint: weights, buffers and other parts. A part is a file, or a key of a
file (`ema/model`)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.reader import CheckpointReader
from orchestrator.errors import CheckpointError


def load_weights(reader: CheckpointReader, label: str, part: str | None = None) -> dict[str, Any]:
    """Return the verified state dict of the evaluated weights or of `part`, unsharded and on the
    CPU."""
    name = reader.resolve(label)
    return load_state_dict(reader, name, part or reader.find_evaluated_weights(name, label))


def load_state_dict(reader: CheckpointReader, name: str, part: str) -> dict[str, Any]:
    """Return the verified state dict in a part of a checkpoint, unsharded and on the CPU."""
    own_file = f"{part.partition('/')[0]}.pt"
    needed = {
        file: entry
        for file, entry in reader.read_manifest(name)["files"].items()
        if file == own_file or placeholders.has_shards(file)
    }
    reader.check_files(name, needed)
    weights: dict[str, Any] = load_parts(reader, name, {"model": part})["model"]
    return weights


def load_buffers(reader: CheckpointReader, label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the verified buffers of rank 0, including those outside the state dict
    (`persistent=False`), and the names of the buffers that a forward pass made or changed in shape.
    """
    name = reader.resolve(label)
    file = "rank-0000.pt"
    entries = reader.read_manifest(name)["files"]
    reader.check_files(name, {file: entries[file]})
    rank_state = reader.load(name, file)
    # A custom loop saves the parts that its task names, and no buffers.
    return rank_state.get("buffers", {}), rank_state.get("remade_buffers", [])


def load_parts(reader: CheckpointReader, name: str, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return parts of a checkpoint by the names that the keys of `parts` give them."""
    available = _list_parts(reader, name)
    content = {key: _load_part(reader, name, part, available) for key, part in parts.items()}
    return fill_shards(reader, name, content)


def load_part(reader: CheckpointReader, name: str, part: str) -> Any:
    """Return a part of a checkpoint, with placeholders for sharded tensors. Raises CheckpointError
    if it has no such part."""
    return _load_part(reader, name, part, _list_parts(reader, name))


def _list_parts(reader: CheckpointReader, name: str) -> list[str]:
    return list_shared_parts(reader.read_manifest(name)["files"])


def _load_part(reader: CheckpointReader, name: str, part: str, available: Sequence[str]) -> Any:
    file, _, key = part.partition("/")
    if file not in available:
        raise CheckpointError(f"checkpoint '{name}' has no {file}; it has {', '.join(available)}")

    content = reader.load(name, f"{file}.pt")
    if not key:
        return content
    if not isinstance(content, Mapping) or key not in content:
        raise CheckpointError(f"{file} in checkpoint '{name}' has no {key}")
    return content[key]


def fill_shards(
    reader: CheckpointReader, name: str, content: dict[str, Any], mesh: Any = None
) -> dict[str, Any]:
    """Return content with its sharded tensors: this rank's shards if `mesh` is given, otherwise full
    tensors."""
    keys = [*placeholders.keys_in(content)]
    if not keys:
        return content
    from orchestrator.disk.checkpoints import sharded_tensors as shards

    tensors = shards.read_tensors(partial(reader.load, name), keys, mesh)
    filled: dict[str, Any] = placeholders.fill(content, tensors)
    return filled


def list_shared_parts(files: Iterable[str]) -> list[str]:
    """Return the files that all ranks share, without their suffix: neither files of one rank nor
    shards."""
    return [
        file.removesuffix(".pt")
        for file in files
        if not file.startswith("rank-") and not placeholders.has_shards(file)
    ]
