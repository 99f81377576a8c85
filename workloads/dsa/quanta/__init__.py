"""Quanta for exact accumulation into kv rows: chosen from counts and one scalar, certified, mended on the device."""
