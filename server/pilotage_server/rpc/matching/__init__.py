"""MatcherService: wire values of offers and matches, and long polls. Decides no match."""
