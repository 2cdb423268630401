"""What is worked out from data or a journal, beside any flow: analyze, replay, report."""
