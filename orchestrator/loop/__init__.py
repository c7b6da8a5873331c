"""A training in a worker. Read `loop.py` first, which is an epoch, and then `training.py`,
`evaluation.py`, `inference.py`, `hooked_run.py` and `training_run.py` with the functions that it
calls. `base_loop.py` begins and ends a run. `inference_loops.py` has the loops that do not train."""
