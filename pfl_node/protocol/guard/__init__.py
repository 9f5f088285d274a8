"""Protection of a node from bad peers: outliers, validation gate, reputation. No I/O; time is passed in."""
