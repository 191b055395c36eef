"""Operators of TFLite over a grid of shapes, types and options, compared with LiteRT."""
