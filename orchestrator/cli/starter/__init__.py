"""What `hookyard init` copies, with another name for `starter`; it runs here as it is."""
