"""CPU schedules of products with weights of 4- and 8-bit integers (`mansard.ir.quantised_weight`)."""
