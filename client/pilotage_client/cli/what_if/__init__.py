"""What would happen: dry runs of submissions and trees, and policies that are tried on live slots."""
