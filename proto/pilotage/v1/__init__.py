"""The protocol's generated stubs."""
