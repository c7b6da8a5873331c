"""Results of a sweep: tables of trials, their analysis and comparison, and earlier attempts."""
