"""Reads policies and asks them: HTCondor configuration files in, expressions and their values out."""
