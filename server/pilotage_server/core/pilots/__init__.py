"""Pilots, their nodes and slots, as values. It does not decide which job a slot gets."""
