"""DSA: attention of each query over its own top-k rows of one shared key-and-value table."""
