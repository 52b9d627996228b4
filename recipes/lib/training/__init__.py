"""Training in the recipes: stopping and resuming, averages, checks."""
