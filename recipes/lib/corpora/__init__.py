"""Corpora of the recipes: downloads, archives, formats, and what is selected from them."""
