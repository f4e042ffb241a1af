"""Background agents: clients of the wire, each one pure decision in a thin shell."""
