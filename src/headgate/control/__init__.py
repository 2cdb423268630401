"""Between epochs: plan, check, commit, remember."""
