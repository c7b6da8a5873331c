"""Tables and queries made of rows and reports: frames, summaries, comparisons, an index of trials."""
