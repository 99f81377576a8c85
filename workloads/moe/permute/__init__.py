"""Bringing each token's row to its experts: rows in expert order, tokens rising within an expert."""
