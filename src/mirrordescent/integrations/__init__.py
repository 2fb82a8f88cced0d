"""RMD inside other libraries' trainers: a file for each, which needs its library and is imported by name."""
