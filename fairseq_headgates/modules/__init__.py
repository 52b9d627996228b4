"""Attention with access to its heads."""
