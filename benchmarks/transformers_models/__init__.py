"""The architectures of transformers, small and with random weights, against PyTorch."""
