"""The registered criterions: fairseq's losses with the L0 penalty of the gates (Voita et al. 2019, eq. 8)."""
