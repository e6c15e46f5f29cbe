"""Command line and measurements of the deployment kit."""
