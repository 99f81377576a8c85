"""Segmented sums in a fixed order: a stable sort of ids, then a fold of the sorted rows in chunks cut at fixed positions."""
