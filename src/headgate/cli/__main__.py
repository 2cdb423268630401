"""`python -m headgate.cli`, for where the script is not installed."""

from headgate.cli.main import app

app(prog_name="headgate")
