"""p05, the prefix cache: share the pages of a common beginning through a radix tree."""
