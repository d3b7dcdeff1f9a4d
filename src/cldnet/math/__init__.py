"""Pure functions on tensors: no model, no file, no task."""
