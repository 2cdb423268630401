"""Which slot gets which row, and the bounded statistics by which that is decided."""
