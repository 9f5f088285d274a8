"""What keeps a node's samples to itself: noisy answers with a budget, and a record of what was spent. No torch"""
