"""Attention's forward, with what its backward needs: log-sum-exp, and how large keys, values and queries are."""
