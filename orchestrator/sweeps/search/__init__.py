"""Search: where the values of the next trial come from."""
