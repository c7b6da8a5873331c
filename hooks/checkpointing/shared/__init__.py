"""What a hook that saves checkpoints needs: its requests, the checkpoints that it keeps, publishing."""
