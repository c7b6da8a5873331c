"""Text: YAML files with line numbers, base files, overrides, and the experiment as written."""
