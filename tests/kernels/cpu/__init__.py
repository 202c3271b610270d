"""The kernels of a CPU, against the torch reference that each has."""
