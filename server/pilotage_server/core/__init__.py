"""What the server decides, as pure functions over values: no I/O, no clock, no logger."""
