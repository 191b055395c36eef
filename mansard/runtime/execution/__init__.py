"""From a plan to recorded and submitted commands on bound devices."""
