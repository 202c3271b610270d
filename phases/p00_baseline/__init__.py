"""p00, the baseline: recompute everything for every token."""
