"""Operations on pilots, nodes and slots: registration, glidein reports, drain, node attributes and listings."""
