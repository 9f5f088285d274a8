"""Membership-inference attacks, with and without the privacy controls."""
