"""RMD inside other libraries' trainers: a module for each, which needs that library, so import it by name."""
