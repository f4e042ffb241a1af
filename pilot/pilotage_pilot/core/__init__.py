"""What the pilot decides, as a pure machine over events and time."""
