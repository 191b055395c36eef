"""Language models of every family on every device against transformers."""
