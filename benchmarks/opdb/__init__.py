"""PyTorch's database of its operators, compiled for each device and compared with eager."""
