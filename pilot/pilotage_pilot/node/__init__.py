"""What the batch slot gives to the pilot."""
