"""GPU schedules of elementwise dispatches and transposes."""
