"""gRPC as all processes use it: channels, deadlines, errors as status, common messages. Knows no service."""
