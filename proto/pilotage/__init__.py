"""What all processes of Pilotage must agree on: requirements, resources, eligibility and the protocol."""

import os

# gRPC reads it when it is imported first, and would tell people on stderr how each connection has ended.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
