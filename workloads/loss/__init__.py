"""Losses over a vocabulary: no champion yet."""
