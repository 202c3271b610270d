"""p00: one forward pass by hand; then the baseline, which recomputes everything for every token."""
