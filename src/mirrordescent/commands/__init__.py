"""The subcommands of `rmd`, a function each: they call the lab and show the results."""
