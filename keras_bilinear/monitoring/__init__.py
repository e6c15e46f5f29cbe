"""What a fit shows, and what it remembers."""
