"""News for many at once, through a broker: hints, never the truth."""
