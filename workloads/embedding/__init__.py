"""Embedding tables: the gradient of a lookup is a sum of rows by id."""
