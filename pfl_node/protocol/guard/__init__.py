"""What protects a node from bad peers, real or simulated: pure, with the time handed in"""
