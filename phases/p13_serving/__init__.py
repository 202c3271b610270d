"""p13, serving: HTTP around the engine of any phase, with a bounded queue, streams, stop strings and an orderly end."""
