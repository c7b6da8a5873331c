"""The Ray cluster for cases that need one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # of a cluster on the loopback of this machine
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Ray's settings, with which a lost node or head is missed after seconds."""


class Nodes:
    """A Ray cluster of a head and two nodes."""

    def __init__(self) -> None:
        self._start()

    def address(self) -> str:
        """Replace what an accident has killed, and return the cluster's address."""
        if self._cluster.head_node.dead_processes():
            self.close()
            self._start()
        for node in [*self._cluster.worker_nodes]:
            if node.dead_processes():
                self._cluster.remove_node(node, allow_graceful=False)
                self._cluster.add_node(num_cpus=2)
        return str(self._cluster.address)

    def close(self) -> None:
        self._cluster.shutdown()

    def _start(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        for _ in range(2):
            self._cluster.add_node(num_cpus=2)


@contextmanager
def ray_cluster() -> Iterator[Nodes]:
    """Start a Ray cluster, with settings that every process of this one inherits."""
    os.environ |= SETTINGS
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()
