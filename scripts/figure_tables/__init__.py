"""One module per topic: measured numbers in, a Markdown table out, and pictures beside it."""
