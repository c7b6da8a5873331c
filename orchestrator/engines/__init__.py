"""Engines: what trains a run or a trial: in this process, a gang of Ray actors, or Ray Train."""
