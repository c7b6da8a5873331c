"""Notes that the hooks of a run have recorded: `info.json`. Imports neither ray nor torch."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.validation import validate

INFO = "info.json"
_log = logging.getLogger("hookyard")


@dataclass(frozen=True)
class _InfoEntries:
    """Entries of `info.json`."""

    info: Mapping[str, Any]


def check_info(entries: Any) -> Mapping[str, Any]:
    """Return the notes in the entries of `info.json`; raises ValueError."""
    return validate(entries, _InfoEntries).info


def read_info(storage: Storage) -> Mapping[str, Any] | None:
    """Return the notes of a run; None without any, and with a warning if the file is damaged."""
    try:
        return read_json(storage, INFO, check_info, "It is left out of run.json.")
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        _log.warning("%s", error)
        return None


def write_info(storage: Storage, info: Mapping[str, Any]) -> None:
    """Write the JSON values of `state.info`, which the end of the run copies to `run.json`. Called
    on rank 0."""
    plain = {}
    for name, value in info.items():
        with suppress(TypeError, ValueError):  # of a tensor, for example
            json.dumps(value)
            plain[name] = value
    if plain:
        write_json(storage, INFO, {"info": plain})
