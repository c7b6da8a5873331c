"""Results of a sweep: tables of trials, their analysis and comparison, and exploits of a
population."""
