"""The model of a rank: its strategy (DDP, FSDP), initial weights and torch settings."""
