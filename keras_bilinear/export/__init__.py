"""A model as a file that is proven to compute what the model does."""
