"""An experiment: its sections, how YAML becomes one, and the checks before it runs."""
