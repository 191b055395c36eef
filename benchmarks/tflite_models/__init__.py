"""Networks that TensorFlow's converter writes, compared with LiteRT."""
