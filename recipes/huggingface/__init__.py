"""Models of Hugging Face as models of fairseq: see import_huggingface.py."""
