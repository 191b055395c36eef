"""Decoder language models from checkpoints: a family is described once, its Graph built directly."""
