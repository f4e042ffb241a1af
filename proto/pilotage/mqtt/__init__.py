"""MQTT: topics, broker settings, connections. Messages are hints, never the truth."""
