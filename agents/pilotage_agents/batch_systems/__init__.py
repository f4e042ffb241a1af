"""Batch systems behind one protocol."""
