"""A threaded gRPC server with one method that does nothing; prints its address and serves until it is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

_ANSWER = b"y" * 160


def main() -> None:
    """Serve."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Call": grpc.unary_unary_rpc_method_handler(_answer)}
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Empty", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


def _answer(_request: bytes, _context: Any) -> bytes:
    return _ANSWER


if __name__ == "__main__":
    main()
