"""The outside of a run on a cluster: what is looked at before it, and how it is sent there."""
