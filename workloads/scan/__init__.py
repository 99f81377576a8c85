"""Prefix sums: no champion yet."""
