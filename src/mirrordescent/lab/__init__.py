"""The lab: everything that is an experiment. It stands on the core, and the core never imports it."""
