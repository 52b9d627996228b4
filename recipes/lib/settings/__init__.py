"""Settings of the recipes: each is declared once, with its type, meaning, group and defaults."""
