"""Values that cross the wire, defined once for every process that sends or receives them.

The dataclasses and enumerations of the protocol, in modules by domain. They are pure; the package `wire` converts them
to and from messages. Decisions on values belong to the processes.
"""
