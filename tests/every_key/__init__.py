"""No key is accepted and ignored: each is given another valid value, and there is another run, or a
refusal."""
