"""Results of the recipes: tables, TSV, sweep files and plots, from the evaluations of models."""
