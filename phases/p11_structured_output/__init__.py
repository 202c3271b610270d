"""p11, structured output: a mask over the tokens keeps every answer inside a regular expression."""
