"""What a node writes to its own disk: identity, checkpoint, journal, model. No pickle, ever."""
