"""What the command lines of all programs share: errors and exit codes, help with examples, and options of settings."""
