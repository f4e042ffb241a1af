"""Subscriptions and notifications in the database. Owns their rows; decides nothing about them."""
