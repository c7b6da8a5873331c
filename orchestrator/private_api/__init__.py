"""What Hookyard takes from Ray beyond its public API, one module for each of Ray's libraries; nothing else names any of
it.

Read in ray 2.56 to 2.60. The tests of this folder have a line for each name, which says what it is for and which Ray
has lost it.
"""
