"""The loop of a task with its own training loop (`Task.train`)."""
