"""Stats: what every rank records, how it travels, and the tables made of it."""
