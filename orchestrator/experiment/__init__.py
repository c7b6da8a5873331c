"""An experiment: its sections, how YAML becomes one, and what is checked before it runs."""
