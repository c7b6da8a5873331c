"""The parts of the hook `checkpoint`: its requests, the checkpoints that it keeps, publishing."""
