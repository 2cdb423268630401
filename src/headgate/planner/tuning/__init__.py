"""How many instances, and how large a batch: Sax et al. 2013, with limits and while running."""
