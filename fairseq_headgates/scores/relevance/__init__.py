"""Relevance of heads and tokens for predictions: LRP (Voita et al. 2019, section 4), AttnLRP, ALTI+."""
