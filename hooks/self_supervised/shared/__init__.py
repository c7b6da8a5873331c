"""Base classes of the self-supervised hooks: teachers and prototypes."""
