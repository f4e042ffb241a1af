"""All slots of a node together: their set, draining, and what they share. A single slot's states are in `slots`."""
