"""The Ethos-U NPUs of Arm as devices of Mansard: Vela compiles, TOSA's reference model stands in."""
