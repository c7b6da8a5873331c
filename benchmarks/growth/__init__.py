"""What grows with what: each thing that people ask of a run, a sweep or a storage, at three sizes, its cost and its
law."""
