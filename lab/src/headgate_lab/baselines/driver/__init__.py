"""Scripts that run under a rival's own Python; nothing of headgate may be imported here."""
