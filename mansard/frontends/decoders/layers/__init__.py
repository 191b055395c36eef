"""The parts of a decoder as ops of a Graph."""
