"""Environment variables that Ray reads, and those that the workers get. Used in the driver."""

import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.private_api.ray_settings import SETTINGS, SETTINGS_ON_THIS_MACHINE


def set_environment(address: str | None) -> None:
    """Set the variables that Ray reads when it is imported, unless the user has set them."""
    settings = SETTINGS | SETTINGS_ON_THIS_MACHINE if address is None else SETTINGS
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules:
        # Ray has already read the other variables, and all its processes must have the same.
        return
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token_file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and not token_file.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def read_environment(names: Iterable[str]) -> dict[str, str]:
    """Return the values of the workers' environment variables in this process. Raises ConfigError if
    one is not set."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError.at(
            "environment", f"{', '.join(missing)} {are} not set; export {them}, or remove {them}"
        )
    return {name: os.environ[name] for name in names}
