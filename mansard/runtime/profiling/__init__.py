"""What profiled calls report: device times, busy and idle time, overlap and its bound."""
