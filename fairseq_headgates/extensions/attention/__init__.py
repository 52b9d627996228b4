"""Draw the attention weights of heads for single sentences (`headgates attention`): docs/explanations.md."""
