"""Base classes of the hooks that measure."""
