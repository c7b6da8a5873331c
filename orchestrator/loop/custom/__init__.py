"""The loop of a task that trains by itself (`Task.train`)."""
