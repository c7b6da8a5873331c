"""Wait until the nodes of a Slurm job have joined its Ray: `python -m ... ADDRESS NODES`."""

import sys
import time

from orchestrator.engines.ray_connection import Ray

TIMEOUT_S = 300.0
_POLL_S = 0.5


def wait_for_nodes(address: str, number: int, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether Ray at an address has that many nodes before the timeout."""
    deadline = time.monotonic() + timeout_s
    with Ray(address) as ray:
        while sum(node["Alive"] for node in ray.nodes()) < number:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    return True


if __name__ == "__main__":
    sys.exit(not wait_for_nodes(sys.argv[1], int(sys.argv[2])))
