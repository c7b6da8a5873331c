"""Well-known training scripts, written for Hookyard and compared with their own loops bit for
bit."""
