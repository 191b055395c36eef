"""TensorFlow: SavedModels, Keras models and functions, exported as StableHLO by TensorFlow itself."""
