"""The formulas of the paper, as pure functions of arrays."""
