"""Which waiting job goes to which slot: the matchers, fair order, slot classes, preemption and demand."""
