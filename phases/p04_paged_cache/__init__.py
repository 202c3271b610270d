"""p04, the paged cache: keys and values in small pages, handed out as they are needed."""
