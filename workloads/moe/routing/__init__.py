"""Which expert a token goes to: top-k with stable ties, the dense map, tokens per expert."""
