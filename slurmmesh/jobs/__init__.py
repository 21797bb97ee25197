"""Commands on jobs: list, status, logs, cancel."""
