"""Grouped matrix products: no champion yet."""
