"""The papers' workloads and flows: what they ran, made again from seeds or public data."""
