"""One iteration: batch, forward, backward, optimizer step."""
