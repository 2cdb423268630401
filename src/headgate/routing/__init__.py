"""Which slot gets which row."""
