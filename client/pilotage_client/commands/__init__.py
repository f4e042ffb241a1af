"""The commands of `pilotage`, one file per group."""
