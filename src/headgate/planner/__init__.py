"""Where keys should live: pure functions from measured pairs and loads to routing tables."""
