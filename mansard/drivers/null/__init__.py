"""A device that computes nothing: the whole driver contract on one page, and faults on demand."""
