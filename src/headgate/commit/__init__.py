"""From epoch to epoch: plan, check, commit, deliver, remember. Decisions come from `control`."""
