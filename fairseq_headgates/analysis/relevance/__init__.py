"""Layer-wise relevance propagation (Voita et al. 2019, section 4 and appendix A): rules, walk through a model."""

from fairseq_headgates.analysis.relevance.rules import RULES, Rule
from fairseq_headgates.analysis.relevance.walk import Relevance, explain, head_relevance, token_contributions

__all__ = ["RULES", "Relevance", "Rule", "explain", "head_relevance", "token_contributions"]
