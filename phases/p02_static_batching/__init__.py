"""p02, static batching: read the weights once for several sequences, padded to one length."""
