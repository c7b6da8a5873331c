"""What every test shares: one thread for torch, as in a worker."""

import torch

torch.set_num_threads(1)
