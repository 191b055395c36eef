"""Emission: tensor operations with which frontends of rules write a Graph, one op after another."""
