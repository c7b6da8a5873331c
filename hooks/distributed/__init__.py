"""Tensors of several ranks: collectives and shards."""
