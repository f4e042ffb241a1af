"""Health of locations: evidence of black holes, and the circuit breakers (wire: throttles) that it opens."""
