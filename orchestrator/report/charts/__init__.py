"""Charts of the page, one kind each."""
