"""Uses of Ray beyond its public API, by library; no other package has any.

Written for ray 2.56 to 2.60. The tests of this folder list each name with its purpose.
"""
