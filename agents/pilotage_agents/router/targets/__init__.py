"""The targets of routes: a queue of a batch system, or another Pilotage server.

Owns their folders; decides no routes.
"""
