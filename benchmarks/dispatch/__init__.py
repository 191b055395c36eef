"""What the host pays to run kernels, and devices to hand over to each other."""
