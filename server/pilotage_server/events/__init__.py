"""Broadcasts over an MQTT broker. They are hints; the database is the truth."""
