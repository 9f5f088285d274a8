"""Is a sample among those a node trains on? The attacks that ask, with and without the privacy controls"""
