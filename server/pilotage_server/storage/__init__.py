"""Rows and queries; rows never leave this package."""
