"""Labelled data of fine-tuning: documents cut into windows, and what is made of the windows' outputs."""
