"""The command `headgate-lab`."""
