"""Artificial English and Russian text with its trees."""
