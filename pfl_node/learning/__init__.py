"""Tasks, data, training and scoring. The only package that imports torch, and only when it is used."""
