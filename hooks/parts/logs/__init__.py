"""Parts that the loggers share."""
