"""A run on a disk or in a bucket: its folder, lease and metadata. Imports neither ray nor torch."""
