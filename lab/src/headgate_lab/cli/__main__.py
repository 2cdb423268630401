"""`python -m headgate_lab.cli`, for where the script is not installed."""

from headgate_lab.cli.main import app

app(prog_name="headgate-lab")
