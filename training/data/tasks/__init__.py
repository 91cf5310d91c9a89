"""Labelled data of fine-tuning: documents cut into windows, and predictions made from the windows' outputs."""
