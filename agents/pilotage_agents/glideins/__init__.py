"""What the site director keeps of glideins, sends, and asks after."""
