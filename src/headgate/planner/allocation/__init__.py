"""Which node has which unit, and how many nodes: balance, collocation, migration and scaling."""
