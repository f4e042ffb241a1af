"""The wire: servicers, identity, errors, conversion."""
