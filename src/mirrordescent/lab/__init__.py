"""The lab: everything for experiments, from data sets to reports. It builds on the core, which never imports it."""
