"""Learning: tasks, layouts, training and scoring. The only folder that imports torch, and only when it is used."""
