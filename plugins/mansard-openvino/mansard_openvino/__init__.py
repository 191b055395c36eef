"""Intel NPUs, and what else OpenVINO runs on, as devices of Mansard that take regions of a model."""
