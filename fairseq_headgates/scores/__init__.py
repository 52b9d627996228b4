"""Measure heads: importance scores, ablation, pruning curves, relevance, correlation of scores.

Importing this package imports nothing else, so that the command starts without torch.
"""
