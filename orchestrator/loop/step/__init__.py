"""The steps of an iteration: batch, forward, backward, optimizer step."""
