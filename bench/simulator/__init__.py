"""A grid in virtual time: real decisions of server, site director and slots, fed by a trace of jobs."""
