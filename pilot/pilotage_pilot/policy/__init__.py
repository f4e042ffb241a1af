"""Loads policies from HTCondor configuration files, and evaluates them for people."""
