"""What all processes of Pilotage must agree on: requirements, resources, eligibility and the protocol."""
