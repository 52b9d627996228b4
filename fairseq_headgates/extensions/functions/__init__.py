"""Find positional, syntactic, rare-token and alignment heads (`headgates functions`): docs/functions.md."""
