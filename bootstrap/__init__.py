"""The seed service: a member that never trains. Membership only; no numpy, no torch, no pydantic."""
