"""p09, Triton attention: read the pages inside the kernel, and fuse the operations around it."""
