"""The all-attention language model with gates (Sukhbaatar et al. 2019; Shim et al. 2021): docs/language-models.md."""
