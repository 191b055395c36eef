"""What the tests share: graphs, plans, kernels and devices, and the programs that run them."""
