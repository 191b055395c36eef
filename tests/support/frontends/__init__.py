"""Short ways to write models for the frontends, and to run what they import to."""
