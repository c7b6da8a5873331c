"""Parts that the self-supervised hooks share."""
