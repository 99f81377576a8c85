"""A stable counting sort of small integers: tile histograms, one scan over bins × tiles, stable ranks within a tile."""
