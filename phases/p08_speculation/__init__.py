"""p08, speculative decoding: guess several tokens, verify them in one pass, keep the same output."""
