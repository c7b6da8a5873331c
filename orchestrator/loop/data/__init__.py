"""Data: what each rank is given of it, in which order, and where an epoch stands."""
