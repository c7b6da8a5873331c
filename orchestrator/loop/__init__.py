"""One training in a worker. Read `loop.py` first: it is an epoch. Then `training.py`,
`evaluation.py` and `training_run.py`, which contain the functions that it calls; `base_loop.py` begins
and ends it."""
