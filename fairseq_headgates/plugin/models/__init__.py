"""The registered architectures: fairseq's models with gates, fixed and removed heads, and frozen parameters."""
