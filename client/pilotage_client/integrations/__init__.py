"""What other workflow systems load: each module needs the package of its system."""
