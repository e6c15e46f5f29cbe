"""The `train_step`, and the models that have it."""
