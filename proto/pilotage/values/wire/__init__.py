"""Values ↔ wire: `wire.X` converts the values of `pilotage.values.X` to and from the protocol's messages.

What the server receives is checked: `*_from_wire` raises InvalidInputError with every fault, each with its place. The
server's answers are trusted.
"""
