"""The live page: the runs of a storage in a browser. It only reads. Imports neither ray nor torch.

Needs the extra `serve`.
"""
