"""The gRPC services: one servicer per service, which converts values and runs one operation in one transaction.

A call arrives in the serving thread (`framework/grpc_calls`). `framework/dispatch` checks its token and role, reads the
request and passes it to the servicer: to a coroutine in the event loop, or to a `@hot` method, which answers later
(docs/decisions/0009). Servicers raise Pilotage's own errors; `framework/calls` maps them to a status.
"""
