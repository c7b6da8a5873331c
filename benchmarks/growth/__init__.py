"""Growth of costs: each operation on a run, a sweep or a storage, at three sizes, with its cost and
its law."""
