"""wire/quirks."""
