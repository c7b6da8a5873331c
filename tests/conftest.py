"""What every test shares: one thread for torch, as in a worker, and Ray's environment before anything imports ray."""

import torch

from orchestrator.engines.ray_environment import set_environment

torch.set_num_threads(1)
set_environment(None)
