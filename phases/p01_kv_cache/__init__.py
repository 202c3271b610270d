"""p01, the KV cache: keep keys and values, so that a token costs one row instead of the whole sequence."""
