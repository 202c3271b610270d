"""p03, continuous batching: a finished sequence leaves and a waiting one enters at every step."""
