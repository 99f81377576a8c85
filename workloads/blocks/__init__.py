"""Building blocks that the families share: segmented reduction, exact accumulation, pinned launch configurations, checks."""
