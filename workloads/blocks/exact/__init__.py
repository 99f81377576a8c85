"""Exact accumulation: contributions rounded to one quantum, so that f32 additions do not round and their order is free."""
