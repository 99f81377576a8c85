"""Normalisations: no champion yet."""
