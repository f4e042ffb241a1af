"""The job router's decisions: routes, transforms, routed jobs and their states. Pure: no I/O, no clock."""
