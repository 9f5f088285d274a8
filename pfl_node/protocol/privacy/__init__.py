"""Protection of a node's samples: noisy answers with a budget, and the accounting of DP-SGD. Does not import
torch."""
