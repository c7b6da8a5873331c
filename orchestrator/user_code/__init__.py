"""Code of the user: the classes that a config names, where they come from, and how they fail."""
