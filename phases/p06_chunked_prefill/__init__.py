"""p06, chunked prefill: cut long prompts to a token budget, so they no longer stall the others."""
