"""The hooked loop: a generator of reports that knows no Ray."""
