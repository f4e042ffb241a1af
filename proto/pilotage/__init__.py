"""What all processes of Pilotage share: requirements, resources, eligibility and the protocol."""

import os

# gRPC reads it at its first import. Its own lines would stand between those of a JSON log, and its errors reach us as
# exceptions anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
