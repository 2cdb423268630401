"""The tour of `headgate demo`, its seeded stream, and what it was measured on."""
