"""The job router: submits waiting jobs along routes. Shells are here, decisions in `core`, targets in `places`."""
