"""`pilotage up`: a whole installation on one machine, with server, agents and pilots as child processes.

It runs the other programs as commands and uses the API like any other client.
"""
