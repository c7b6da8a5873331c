"""The hooked loop: a generator of reports that does not depend on Ray."""
