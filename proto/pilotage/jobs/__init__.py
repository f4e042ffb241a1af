"""What client, server and pilot share about a job: its description, files, environment and report limits."""
