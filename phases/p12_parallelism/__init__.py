"""p12, parallelism: one model cut over several processes, by matrices and by layers, and several whole ones."""
