"""Values between plain data and the typed fields of a class, and messages about bad ones."""
