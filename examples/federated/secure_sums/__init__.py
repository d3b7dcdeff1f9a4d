"""Integer sums of several clients, of which the server sees only the total."""
