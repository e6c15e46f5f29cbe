"""What a fit is given, checked before anything is computed."""
