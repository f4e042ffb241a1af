"""What all processes of Pilotage share: requirements, resources, eligibility and the protocol."""

import os

# gRPC reads it at its first import; without it, it reports the end of every connection on stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
