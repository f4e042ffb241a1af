"""The grammar of `pilotage`: the names of all commands, groups that load a command when it is used, and completion."""
