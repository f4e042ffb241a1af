"""What every agent runs on: the loop, leader election, back-off, the link to the server.

Knows no agent.
"""
