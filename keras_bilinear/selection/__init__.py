"""Which rank and which alpha."""
