"""What passes, placement and code generation ask about a Graph: affine forms, loops, operands, structure."""
