"""Names that are no part of a library's public API: whether they are there still, and the words
where they are not."""

import inspect
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter


def assert_there(name: str, fence: str, use: str) -> None:
    """`module:attribute`, or `module:Class attribute` for what a class gives its instances and no
    class has."""
    module, _, path = name.partition(":")
    path, _, inner = path.partition(" ")
    library = module.partition(".")[0]
    gone = f"{library} {version(library)} has no {name}: {fence} relies on it for {use}"
    try:
        found = import_module(module)
        found = attrgetter(path)(found) if path else found
    except (ImportError, AttributeError):
        raise AssertionError(gone) from None
    if inner:
        classes = found.__mro__ if inspect.isclass(found) else (found,)
        assert any(
            f".{inner}" in inspect.getsource(one)
            for one in classes
            if one.__module__.startswith(library)
        ), gone
