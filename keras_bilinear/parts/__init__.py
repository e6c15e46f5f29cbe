"""What Keras plugs in and saves: layers, losses, optimizers."""
