"""What lowers J over arrays; it knows no model and no layer."""
