"""ClassAds in the server: views of ads, parts of slot ads, cached evaluation and its cost."""
