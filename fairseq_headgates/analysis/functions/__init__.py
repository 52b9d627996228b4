"""Find the functions of heads: positional, syntactic, rare tokens, alignment."""
