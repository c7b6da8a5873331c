"""Base classes of the loggers, and how they read numbers."""
