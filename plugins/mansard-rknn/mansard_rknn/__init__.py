"""Rockchip's NPUs as devices of Mansard: RKNN-Toolkit2 compiles, and its simulator stands in."""
