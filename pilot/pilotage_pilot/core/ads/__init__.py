"""The ClassAds of node and slots, and the policies evaluated on them. Publishes attributes; changes no slot."""
