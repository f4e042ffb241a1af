"""What the agents decide, as pure functions."""
