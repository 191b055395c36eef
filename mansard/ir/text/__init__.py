"""The text form of the Graph IR: what is printed and what reads it back, side by side."""
