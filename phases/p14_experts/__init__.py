"""p14, mixtures of experts: an MLP's place taken by many small ones, of which each token chooses a few."""
