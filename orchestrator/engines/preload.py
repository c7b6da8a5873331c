"""What is large and every trial needs, imported at once. Before anything else, by what a trial's processes load.

Meanwhile Python's garbage collector would go through all that there is again and again and find nothing, which is a
tenth of what a small sweep takes to start; and what is there then it does not look at later, so its pauses in training
are shorter. Does nothing in a process that is not ours, such as the driver's.
"""

from __future__ import annotations

import gc

import ray


def _is_an_actors() -> bool:
    return ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


if _is_an_actors() and gc.isenabled():
    gc.disable()
    from hooks.private_torch import import_compiler

    import_compiler()
    gc.freeze()
    gc.enable()
