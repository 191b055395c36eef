"""What `mansard compile` does besides: IR in the middle, quantisation."""
