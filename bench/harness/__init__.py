"""What the benches of whole servers share: processes, load, the day's queue, figures."""
