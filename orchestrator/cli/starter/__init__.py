"""Files that `hookyard init` copies, with another name for `starter`."""
