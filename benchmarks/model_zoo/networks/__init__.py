"""The architectures, written once: against the vocabulary that each framework provides."""
