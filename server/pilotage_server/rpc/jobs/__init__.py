"""JobService: wire values of jobs, files and events. Decides nothing."""
