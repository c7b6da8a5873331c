"""The learning rate over a run: schedulers, their phases, and when they step."""
