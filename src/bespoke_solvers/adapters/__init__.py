"""Other libraries' models and tools. Each module imports its library when it is used, not before."""
