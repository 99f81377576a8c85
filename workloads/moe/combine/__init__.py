"""Bringing the experts' rows back to their tokens: the weighted sum over the top-k slots of each token."""
