"""Relevance of heads and tokens for predictions: LRP (Voita et al. 2019, section 4), AttnLRP, ALTI+."""

from fairseq_headgates.analysis.relevance.explaining import OTHERS, explain, head_relevance, token_contributions
from fairseq_headgates.analysis.relevance.predictions import Relevance
from fairseq_headgates.analysis.relevance.rules import RULES, Rule

__all__ = ["OTHERS", "RULES", "Relevance", "Rule", "explain", "head_relevance", "token_contributions"]
