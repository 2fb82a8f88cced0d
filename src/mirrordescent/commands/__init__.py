"""What the command `rmd` does, a function for each of its words: they call the lab, and show what came back."""
