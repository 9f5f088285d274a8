"""The seed service: a member that does not train. Imports no numpy, torch or pydantic."""
