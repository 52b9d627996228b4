"""Text of the recipes: cleaning, commands on blocks of lines, batches."""
