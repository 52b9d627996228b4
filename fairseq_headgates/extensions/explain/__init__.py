"""Show how much each token contributes to a prediction (`headgates explain`): docs/explanations.md."""
