"""Operations on attempts: transitions, reports, heartbeats, lost leases and their events. Each is one transaction."""
