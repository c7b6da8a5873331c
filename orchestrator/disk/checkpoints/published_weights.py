"""Published files: parts of a checkpoint in a file of their own."""

import hashlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch

from orchestrator.disk.checkpoints.contents import load_parts
from orchestrator.disk.checkpoints.reader import CheckpointReader

_META = "meta"
"""Part with the manifest of the checkpoint and the experiment."""


def publish_parts(
    reader: CheckpointReader,
    name: str,
    parts: Mapping[str, str],
    target: str,
    config: Mapping[str, Any],
) -> str:
    """Write parts of a checkpoint to the file `<target>-<hash>.pt`, and return its path.

    Args:
        reader: The checkpoints.
        name: The checkpoint.
        parts: What the file holds, by name: a file of the checkpoint, a key of one (`ema/model`),
            or `meta`, which is the manifest plus `config`.
        target: Path of the file in the folder of the checkpoints, without its hash.
        config: The experiment.
    """
    stored_parts = {part: key for part, key in parts.items() if key != _META}
    content = load_parts(reader, name, stored_parts)
    if _META in parts.values():
        content["meta"] = {**reader.read_manifest(name), "config": dict(config)}

    buffer = BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    path = f"{target}-{hashlib.sha256(data).hexdigest()[:8]}.pt"
    reader.storage.write(path, data)
    return reader.get_path(path)
