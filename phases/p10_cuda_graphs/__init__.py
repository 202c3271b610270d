"""p10, CUDA graphs and overlap: replay a step instead of launching it, and plan the next one while it runs."""
